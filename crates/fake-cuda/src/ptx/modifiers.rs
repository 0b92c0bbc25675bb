//! Modifiers of an opcode. Each decoder takes those that it supports; a remaining one is refused.

use super::types::Type;

/// The modifiers of a statement, in order.
#[derive(Debug)]
pub struct Modifiers<'a> {
    left: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// Splits `ld.global.f32` into opcode and modifiers.
    pub fn split(word: &'a str) -> (&'a str, Self) {
        let mut parts = word.split('.');
        let opcode = parts.next().unwrap_or("");
        (opcode, Self { left: parts.collect() })
    }

    /// Takes a modifier; returns whether it was present.
    pub fn take(&mut self, name: &str) -> bool {
        let place = self.left.iter().position(|left| *left == name);
        place.map(|place| self.left.remove(place)).is_some()
    }

    /// Takes the first of these modifiers that is present, and returns its value.
    pub fn choose<T: Copy>(&mut self, names: &[(&str, T)]) -> Option<T> {
        names.iter().find(|(name, _)| self.take(name)).map(|(_, value)| *value)
    }

    /// Takes all of these modifiers that are present, and returns their values in the order of the text.
    pub fn values<T: Copy>(&mut self, names: &[(&str, T)]) -> Vec<T> {
        let value = |left: &&str| names.iter().find(|(name, _)| name == left).map(|(_, value)| *value);
        let values = self.left.iter().filter_map(value).collect();
        self.left.retain(|left| value(left).is_none());
        values
    }

    /// Takes all of these.
    pub fn ignore(&mut self, names: &[&str]) {
        self.left.retain(|left| !names.contains(left));
    }

    /// Takes all with this prefix.
    pub fn ignore_prefixes(&mut self, prefixes: &[&str]) {
        self.left.retain(|left| !prefixes.iter().any(|prefix| left.starts_with(prefix)));
    }

    /// Takes the types, in order.
    pub fn types(&mut self) -> Vec<Type> {
        let types = self.left.iter().filter_map(|left| Type::parse(left)).collect();
        self.left.retain(|left| Type::parse(left).is_none());
        types
    }

    /// Whether all were taken.
    pub fn none_left(&self) -> bool {
        self.left.is_empty()
    }
}
