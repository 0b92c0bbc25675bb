//! Makes untrusted text safe to show: one line of bounded length, without control characters and without characters
//! that change the text direction. Pages must escape HTML themselves.

/// Maximum characters of a name.
pub(crate) const NAME: usize = 200;

/// Maximum characters of a line.
pub(crate) const LINE: usize = 400;

/// Returns the text as one line of at most `most` characters; a longer text ends with `…`. Control characters and
/// characters that change the text direction become `\u{fffd}`.
pub fn clean(text: &str, most: usize) -> String {
    let shown = |character: char| match character {
        '\n' | '\r' | '\t' => ' ',
        harmful if is_harmful(harmful) => char::REPLACEMENT_CHARACTER,
        harmless => harmless,
    };
    let mut cleaned = text.chars().take(most).map(shown).collect::<String>();
    if text.chars().nth(most).is_some() {
        cleaned.pop();
        cleaned.push('…');
    }
    cleaned
}

/// Control characters, characters of UAX 9 that change the text direction, and zero-width and private-use characters.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
                | '\u{e000}'..='\u{f8ff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' | '\u{f0000}'..
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_replaced_and_words_are_kept() {
        assert_eq!(clean("a\u{1b}[2Jb\u{9b}31m\u{7f}\u{202e}gpj", 99), "a�[2Jb�31m��gpj");
        assert_eq!(clean("Größe 漢字 🙂\nnext", 99), "Größe 漢字 🙂 next");
        assert_eq!((clean("abcd", 4), clean("abcde", 4)), ("abcd".to_owned(), "abc…".to_owned()));
        assert_eq!(clean("abc", 0), "…");
    }

    proptest! {
        #[test]
        fn any_text_is_a_short_line(text in any::<String>(), most in 1_usize..50) {
            let cleaned = clean(&text, most);
            prop_assert!(cleaned.chars().count() <= most);
            prop_assert!(!cleaned.chars().any(is_harmful));
        }
    }
}
