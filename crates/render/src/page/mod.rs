//! Pages: one file each, without external resources or scripts. This file has their shared parts; the contents are in
//! `picture/html.rs` and `run_page/`.

pub(super) mod axis;
pub(super) mod chart;
pub(super) mod steps;

use crate::printable::printable;
use std::fmt::Write;

/// A page with this title and additional CSS around its body, which is markup.
pub(super) fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <title>{}</title>\n<style>\n{}{}{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title),
        include_str!("page.css"),
        chart::rules()
    )
}

/// A standalone picture around a body, which is markup, with the CSS of pages.
pub(super) fn picture(title: &str, style: &str, [width, height]: [f64; 2], body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{}\">\n<style>\n{}text {{ font: 11px system-ui, sans-serif; fill: var(--ink); }}\n\
         text.quiet {{ fill: var(--quiet); }}\n{style}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"var(--paper)\"/>\n{body}</svg>\n",
        escape(title),
        include_str!("page.css")
    )
}

/// The most important figures: for each its name, the figure, and a note.
pub(super) fn figures(figures: &[(&str, String, String)]) -> String {
    let mut html = "<dl class=\"figures\">\n".to_owned();
    for (what, figure, note) in figures {
        let note = if note.is_empty() { String::new() } else { format!("<small>{}</small>", escape(note)) };
        let _ = writeln!(html, "<div><dt>{what}</dt><dd>{}{note}</dd></div>", escape(figure));
    }
    html + "</dl>\n"
}

/// A table: its class, its caption, the heads of its columns, and rows of text. The first column names the row.
pub(super) fn table(class: &str, caption: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = format!("<div class=\"wide\"><table class=\"{class}\">\n");
    if !caption.is_empty() {
        let _ = writeln!(html, "<caption>{}</caption>", escape(caption));
    }
    if !heads.is_empty() {
        let cells = heads.iter().map(|head| format!("<th scope=\"col\">{}</th>", escape(head))).collect::<String>();
        let _ = writeln!(html, "<thead><tr>{cells}</tr></thead>");
    }
    html += "<tbody>\n";
    for row in rows {
        let mut cells = row.iter().map(|cell| escape(cell));
        let first = cells.next().unwrap_or_default();
        let others = cells.map(|cell| format!("<td>{cell}</td>")).collect::<String>();
        let _ = writeln!(html, "<tr><th scope=\"row\">{first}</th>{others}</tr>");
    }
    html + "</tbody>\n</table></div>\n"
}

/// Text as markup, with `words` between backticks as code.
pub(super) fn prose(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let pieces = pieces.map(|(index, piece)| match index % 2 {
        1 => format!("<code>{}</code>", escape(piece)),
        _ => escape(piece),
    });
    pieces.collect()
}

/// Text for markup, in elements and in quoted attributes. Control characters and those that change the text direction become
/// escapes, as on a terminal; other characters that XML can't hold become a replacement character.
pub(super) fn escape(text: &str) -> String {
    let text = printable(text);
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{FFFE}' | '\u{FFFF}' => escaped.push('\u{FFFD}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Fails if a tag is not closed, or is closed in the wrong order. The contents of scripts and styles are not markup.
#[cfg(test)]
pub(super) fn check_balance(markup: &str) {
    let mut open = Vec::new();
    let mut rest = markup;
    while let Some((text, tag)) = rest.split_once('<') {
        assert!(!text.contains('>'), "a bracket outside a tag: {text}");
        let (tag, behind) = tag.split_once('>').expect("a tag ends");
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag}");
        rest = behind;
        let name = tag.trim_matches('/').split_whitespace().next().expect("a tag has a name");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if matches!(name, "script" | "style") {
            let end = rest.find(&format!("</{name}>")).expect("it ends");
            rest = &rest[end + name.len() + 3..];
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
}

/// Fails unless a page is valid markup that loads nothing and runs nothing.
#[cfg(test)]
pub(super) fn check_page(page: &str) {
    check_balance(page.strip_prefix("<!DOCTYPE html>").expect("a page"));
    for word in [" src=\"", " href=\"", "@import", "url(", "<script", "<img", "<link"] {
        assert!(!page.contains(word), "the page has {word}");
    }
    assert!(!page.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')), "control characters");
}
