//! Chooses the held-out text that a run's sample continues: text that begins with words and at the start of a line, if
//! there is any, so that the sample is readable.

/// Held-out samples to search.
pub(super) const SAMPLES: u64 = 32;

/// Start positions to try in each of them.
const STARTS: usize = 512;

/// The most tokens of one character.
const CHARACTER: usize = 4;

/// The least share of letters and spaces in a prompt.
const READABLE: f64 = 0.6;

/// Tokens of held-out text.
pub(super) struct Text<'a> {
    pub(super) ids: &'a [u32],
    /// Whether a document starts with these tokens; otherwise they may start within a word.
    pub(super) is_whole: bool,
}

/// Where a prompt may start, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beginning {
    Line,
    Word,
}

/// The tokens to continue, from several texts: at most `most`; empty if there are no texts. `decode`: the text of
/// tokens, which may start and end within a character.
pub(super) fn choose(samples: &[Text<'_>], most: usize, decode: impl Fn(&[u32]) -> Vec<u8>) -> Vec<u32> {
    let text = &|ids: &[u32]| String::from_utf8_lossy(&decode(ids)).into_owned();
    for wanted in [Beginning::Line, Beginning::Word] {
        for Text { ids, is_whole } in samples {
            let found = (0..ids.len().saturating_sub(most).min(STARTS)).find_map(|start| {
                let behind = &ids[start.saturating_sub(CHARACTER)..];
                let before = text(&behind[..start.min(CHARACTER)]);
                let with_next = text(&behind[..=start.min(CHARACTER)]);
                let prompt = &ids[start..start + whole_words(&ids[start..], most, text)];
                let begins = match start {
                    0 if !is_whole => return None,
                    _ => beginning(&before, with_next.strip_prefix(&before)?)?,
                };
                (begins == wanted && is_readable(&text(prompt))).then(|| prompt.to_vec())
            });
            if let Some(prompt) = found {
                return prompt;
            }
        }
    }
    let first = samples.iter().find(|sample| !text(sample.ids).trim().is_empty()).or(samples.first());
    first.map_or(vec![], |Text { ids, .. }| ids[..ids.len().min(most.max(1))].to_vec())
}

/// How a token's text starts after another text.
fn beginning(before: &str, text: &str) -> Option<Beginning> {
    let is_word = |text: &str| text.chars().next().is_some_and(char::is_alphabetic);
    let is_apart = before.ends_with(char::is_whitespace) && is_word(text);
    match before {
        _ if is_word(text) && (before.is_empty() || before.ends_with('\n')) => Some(Beginning::Line),
        _ if is_apart || text.strip_prefix(' ').is_some_and(is_word) => Some(Beginning::Word),
        _ => None,
    }
}

/// The most tokens, up to `most`, after which a word ends; `most` if there is no such position.
fn whole_words(ids: &[u32], most: usize, text: impl Fn(&[u32]) -> String) -> usize {
    let ends_word = |count: &usize| {
        let (shorter, longer) = (text(&ids[..*count]), text(&ids[..count + 1]));
        let next = longer.strip_prefix(&shorter).and_then(|next| next.chars().next());
        next.is_some_and(char::is_whitespace) && shorter.ends_with(char::is_alphanumeric)
    };
    let most = most.clamp(1, ids.len());
    (most / 2 + 1..=most.min(ids.len() - 1)).rev().find(ends_word).unwrap_or(most)
}

/// Whether most of a text is words.
fn is_readable(text: &str) -> bool {
    let (all, words) = text.chars().fold((0, 0), |(all, words), character| {
        (all + 1, words + usize::from(character.is_alphabetic() || character == ' '))
    });
    all > 0 && words as f64 >= READABLE * all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prompt from texts whose tokens are their bytes.
    fn of(texts: &[&str], most: usize) -> String {
        let samples = texts.iter().map(|text| text.bytes().map(u32::from).collect::<Vec<_>>()).collect::<Vec<_>>();
        let samples = samples.iter().map(|ids| Text { ids, is_whole: false }).collect::<Vec<_>>();
        let prompt = choose(&samples, most, |ids| ids.iter().map(|&id| id as u8).collect());
        String::from_utf8(prompt.into_iter().map(|id| id as u8).collect()).expect("text")
    }

    #[test]
    fn a_prompt_begins_with_a_line_of_words_and_ends_with_a_word() {
        assert_eq!(of(&["ink your\n    \nmystery in stratagem can bring back"], 24), "mystery in stratagem can");
        assert_eq!(
            of(&["    \n        ]);\n    }\n", "x\nAll that is gold does not glitter, not all"], 20),
            "All that is gold"
        );
        assert_eq!(of(&["}) = 1 + all the words that stand here and there"], 24), "all the words that stand");
    }

    #[test]
    fn a_document_is_continued_from_its_beginning() {
        let ids = b"Once upon a time there was".map(u32::from);
        let start =
            |is_whole| choose(&[Text { ids: &ids, is_whole }], 9, |ids| ids.iter().map(|&id| id as u8).collect());
        assert_eq!(start(true), b"Once upon".map(u32::from));
        assert_eq!(start(false), b"upon a".map(u32::from), "what comes first may be the end of a word");
    }

    #[test]
    fn without_words_the_prompt_is_not_white_space() {
        assert_eq!(of(&["        \n        ", "}}}}    ====1234"], 6), "}}}}  ");
        assert_eq!(of(&["    "], 2), "  ");
        assert_eq!(of(&[], 2), "");
        assert_eq!(of(&["a"], 5), "a");
    }
}
