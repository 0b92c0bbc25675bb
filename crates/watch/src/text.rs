//! Texts of others, made safe to show: one line, of a bounded length, without characters that terminals obey or that turn text
//! around. What a page needs beyond that (escaping HTML) is the page's.

/// Letters of a name, at most.
pub(crate) const NAME: usize = 200;

/// Letters of a line, at most.
pub(crate) const LINE: usize = 400;

/// A text as one line of at most so many characters; the last of a longer one is `…`. Characters that do something, or that
/// change the direction of text, are shown as `\u{fffd}`.
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

/// Control characters, those of UAX 9 that change directions, those without width, and those of private use.
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
    fn what_terminals_obey_is_gone_and_words_are_left_alone() {
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
