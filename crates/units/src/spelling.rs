//! Suggests known names for an unknown one, with one metric and one limit for all suggestions.

/// Limit on the length of a name, in bytes: the cost of a comparison grows with the square of the length.
const LENGTH_MAX: usize = 80;
/// Limit on typing errors between two similar names.
const EDITS_MAX: usize = 3;
/// Limit on names in a suggestion.
const SUGGESTIONS_MAX: usize = 3;
/// Characters per allowed typing error. The last group may lack one.
const CHARACTERS_PER_EDIT: usize = 4;

/// The number of typing errors between two names: missing, added, replaced or swapped characters. Ignores case, and
/// treats `_` and `-` as equal. `None` if the names are too different: more than three errors, or more than one per
/// four characters of `name`.
/// Source of the metric: Damerau 1964, "A technique for computer detection and correction of spelling errors".
pub fn edits(name: &str, known: &str) -> Option<usize> {
    if name.is_empty() || name.len() > LENGTH_MAX {
        return None;
    }
    let (name, known) = (folded(name), folded(known));
    let (length, known_length) = (name.chars().count(), known.chars().count());
    let edits_max = EDITS_MAX.min((length + 1) / CHARACTERS_PER_EDIT);
    if length.abs_diff(known_length) > edits_max {
        return None;
    }
    Some(strsim::damerau_levenshtein(&name, &known)).filter(|edits| *edits <= edits_max)
}

/// The items of the known names that are most similar to `name` (see [`edits`]): at most three, in the order of
/// `known`.
pub fn nearest_of<S: AsRef<str>, T>(name: &str, known: impl IntoIterator<Item = (S, T)>) -> Vec<T> {
    let near = known.into_iter().filter_map(|(known, item)| Some((edits(name, known.as_ref())?, item)));
    let near = near.collect::<Vec<_>>();
    let fewest = near.iter().map(|(edits, _)| *edits).min();
    near.into_iter().filter(|(edits, _)| Some(*edits) == fewest).take(SUGGESTIONS_MAX).map(|(_, item)| item).collect()
}

/// The known name that is most similar to `name` (see [`edits`]), if any. Ties go to the first in alphabetical order.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().filter_map(|known| Some((edits(name, known)?, known)));
    near.min().map(|(_, known)| known)
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_misspellings_are_similar() {
        for (name, known, expected) in [
            ("lerning-rate", "learning-rate", Some(1)),
            ("lerning_rate", "Learning-Rate", Some(1)),
            ("gpuz", "gpus", Some(1)),
            ("pln", "plan", Some(1)),
            ("gtp2", "gpt2", Some(1)),
            ("DATA", "data", Some(0)),
            ("größe", "große", Some(1)),
            ("gradient_checkpoint", "gradient_checkpointing", Some(3)),
            ("gradient_check", "gradient_checkpointing", None),
            ("export", "report", None),
            ("detach", "head-chunk", None),
            ("lora", "host-ram", None),
            ("sft", "stop", None),
            ("ab", "ac", None),
            ("", "a", None),
            ("", "", None),
        ] {
            assert_eq!(edits(name, known), expected, "{name} {known}");
        }
        assert_eq!(edits(&"a".repeat(LENGTH_MAX), &"a".repeat(LENGTH_MAX)), Some(0));
        assert_eq!(edits(&"a".repeat(LENGTH_MAX + 1), &"a".repeat(LENGTH_MAX + 1)), None);
    }

    #[test]
    fn the_suggestion_does_not_depend_on_the_order_of_known_names() {
        for known in [["text.txt", "test.txt", "next.txt"], ["next.txt", "test.txt", "text.txt"]] {
            assert_eq!(nearest("texd.txt", known), Some("text.txt"));
            assert_eq!(nearest("tesd.txt", known), Some("test.txt"));
            assert_eq!(nearest("tezt.txt", known), Some("test.txt"));
            assert_eq!(nearest("image.png", known), None);
        }
    }

    #[test]
    fn only_the_most_similar_names_are_suggested() {
        let known = ["t5-xl", "t5-base", "t5-bass", "t5-case", "t5-vase"].map(|name| (name, name.len()));
        assert_eq!(nearest_of("t5-base", known), [7]);
        assert_eq!(nearest_of("t5-bxse", known.map(|(name, _)| (name, name))), ["t5-base"]);
        assert_eq!(nearest_of("t5-bas", known.map(|(name, _)| (name, name))), ["t5-base", "t5-bass"]);
        assert_eq!(nearest_of("t5-zase", known), [7, 7, 7]);
        assert_eq!(nearest_of("bert", known), []);
    }

    proptest! {
        #[test]
        fn any_names_can_be_compared(name in "\\PC{0,30}", known in "\\PC{0,30}") {
            prop_assert!(edits(&name, &known).is_none_or(|edits| edits <= EDITS_MAX));
            prop_assert_eq!(edits(&name, &name).is_some(), !name.is_empty() && name.len() <= LENGTH_MAX);
        }
    }
}
