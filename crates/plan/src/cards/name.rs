//! Names of cards, as people and drivers write them, cut into words that can be compared.

use plimsoll_units::Bytes;

/// Words that many cards have, and that identify none.
const SAID_OF_ALL: [&str; 11] =
    ["nvidia", "geforce", "tesla", "rtx", "gtx", "gpu", "card", "generation", "workstation", "edition", "hbm"];
/// What sets cards apart but is often left out.
const OFTEN_UNSAID: [&str; 4] = ["sxm", "pcie", "ada", "blackwell"];
/// Other words that are run together, as in `4070tisuper`. Of two that begin alike, the longer comes first.
const RUN_TOGETHER: [&str; 12] =
    ["titan", "ti", "super", "server", "laptop", "mobile", "maxq", "quadro", "pro", "nvl", "gib", "gb"];
const LAPTOP: [&str; 3] = ["laptop", "mobile", "maxq"];
/// A bare number with up to this many digits after a card's number means GiB.
const MEMORY_DIGITS_MAX: usize = 3;

/// A card's name: `Tesla V100-SXM2-16GB` is the words `v`, `100`, `sxm` and 16 GiB.
pub(super) struct Name {
    words: Vec<String>,
    memory_gib: Option<u64>,
}

/// A run of letters or of digits; of letters, at most one known word.
struct Part<'a> {
    text: &'a str,
    /// Whether it is at the beginning, or after a space or a sign.
    begins: bool,
}

impl Name {
    /// Reads any text.
    pub(super) fn read(text: &str) -> Self {
        let text = text.to_lowercase().replace("max-q", "maxq").replace("max q", "maxq");
        let mut parts = parts(&text).into_iter().peekable();
        let mut name = Self { words: Vec::new(), memory_gib: None };
        while let Some(part) = parts.next() {
            let number = part.text.parse::<u64>().ok();
            let unit = |next: &Part| matches!(next.text, "gb" | "gib") || (part.begins && next.text == "g");
            let has_unit = number.is_some() && parts.next_if(unit).is_some();
            let is_second = part.begins && part.text.len() <= MEMORY_DIGITS_MAX && name.has_number();
            match number {
                Some(gib) if has_unit || is_second => name.memory_gib = Some(gib),
                _ => name.say(part.text),
            }
            if matches!(part.text, "sxm" | "hbm") {
                // Their generation goes with the card's: `sxm4`, `hbm3e`.
                let generation = parts.next_if(|next| !next.begins && next.text.len() == 1 && is_number(next.text));
                let _ = generation.and_then(|_| parts.next_if(|next| !next.begins && next.text == "e"));
            }
        }
        name
    }

    /// Whether a card with this memory can be meant. Cards report up to a tenth less than they are sold with.
    pub(super) fn fits_memory(&self, memory: Bytes) -> bool {
        let Some(gib) = self.memory_gib else { return true };
        let memory_mib = memory.0 >> 20;
        let sold_mib = gib.saturating_mul(1024);
        memory_mib <= sold_mib && sold_mib - memory_mib <= sold_mib / 10
    }

    /// How many of a card's words are left out here; `None` if it is not that card. Memory is not looked at.
    pub(super) fn words_unsaid(&self, card: &Self) -> Option<usize> {
        let all_hold = self.words.iter().all(|word| card.words.contains(word));
        let mut unsaid = card.words.iter().filter(|word| !self.words.contains(word));
        let count = unsaid.clone().count();
        (all_hold && unsaid.all(|word| OFTEN_UNSAID.contains(&word.as_str()))).then_some(count)
    }

    fn say(&mut self, word: &str) {
        let word = if LAPTOP.contains(&word) { LAPTOP[0] } else { word };
        if !SAID_OF_ALL.contains(&word) {
            self.words.push(word.to_owned());
        }
    }

    fn has_number(&self) -> bool {
        self.words.iter().any(|word| is_number(word))
    }

    /// The words that tell cards apart and that are always written, run together: `3080super`.
    pub(super) fn essence(&self) -> String {
        let words = self.words.iter().filter(|word| !OFTEN_UNSAID.contains(&word.as_str()));
        words.flat_map(|word| word.chars()).collect()
    }
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let same = |c: char| c.is_ascii_digit() == first.is_ascii_digit();
            let run = &rest[..rest.find(|c| !same(c)).unwrap_or(rest.len())];
            let known = SAID_OF_ALL.iter().chain(&OFTEN_UNSAID).chain(&RUN_TOGETHER);
            let length = known.copied().find(|known| run.starts_with(known)).unwrap_or(run).len();
            parts.push(Part { text: &rest[..length], begins: rest.len() == word.len() });
            rest = &rest[length..];
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_into_words_and_memory() {
        for (text, words, memory_gib) in [
            ("Tesla V100-SXM2-16GB", "v 100 sxm", Some(16)),
            ("NVIDIA H100 80GB HBM3e", "h 100", Some(80)),
            ("geforcertx4070tisuper", "4070 ti super", None),
            ("A10G", "a 10 g", None),
            ("4060 ti 16", "4060 ti", Some(16)),
            ("RTX 3080 Max-Q", "3080 laptop", None),
            ("99999999999999999999999gb", "99999999999999999999999 gb", None),
            ("ß-GPU é", "ß é", None),
        ] {
            let name = Name::read(text);
            assert_eq!((name.words.join(" ").as_str(), name.memory_gib), (words, memory_gib), "{text}");
        }
    }
}
