//! What things look like. Nothing is told by color alone: words, signs and shapes say the same.

use ratatui::style::{Color, Modifier, Style};

/// A set of looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    /// The terminal's own colors.
    Color,
    /// None: bold, dim and reversed.
    Mono,
    /// Blue, orange and yellow, which are told apart by nearly all eyes. Source: Okabe and Ito 2008, "Color Universal Design".
    ColorBlind,
}

/// What something means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Words that matter less.
    Quiet,
    /// Titles, keys.
    Title,
    /// Names.
    Strong,
    /// As it should be.
    Good,
    /// Something to look at.
    Warn,
    /// Something is wrong.
    Bad,
    /// The runs that are shown, and what is theirs.
    Ours,
    /// What is planned for them.
    Planned,
    /// What others have.
    Others,
    /// The line of a curve.
    Curve,
    /// Points beside it.
    Points,
    /// The row that is selected, in the pane that has the keys.
    Selected,
    /// The row that is selected, in another.
    Marked,
    /// The first and the last line of the screen.
    Edge,
}

impl Palette {
    pub(crate) fn style(self, role: Role) -> Style {
        let style = Style::new();
        match self {
            Self::Mono => match role {
                Role::Quiet | Role::Planned => style.add_modifier(Modifier::DIM),
                Role::Title | Role::Strong | Role::Warn | Role::Ours => style.add_modifier(Modifier::BOLD),
                Role::Bad => style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
                Role::Selected | Role::Edge => style.add_modifier(Modifier::REVERSED),
                Role::Marked => style.add_modifier(Modifier::UNDERLINED),
                Role::Good | Role::Others | Role::Curve | Role::Points => style,
            },
            Self::Color => in_colors(role, [Color::Green, Color::Yellow, Color::Red, Color::Cyan, Color::Magenta]),
            Self::ColorBlind => in_colors(role, [33, 220, 208, 75, 180].map(Color::Indexed)),
        }
    }
}

fn in_colors(role: Role, [good, warn, bad, ours, others]: [Color; 5]) -> Style {
    let style = Style::new();
    match role {
        Role::Quiet => style.fg(Color::DarkGray),
        Role::Title => style.fg(ours).add_modifier(Modifier::BOLD),
        Role::Strong => style.add_modifier(Modifier::BOLD),
        Role::Good => style.fg(good),
        Role::Warn => style.fg(warn),
        Role::Bad => style.fg(bad).add_modifier(Modifier::BOLD),
        Role::Ours | Role::Planned | Role::Curve => style.fg(ours),
        Role::Others => style.fg(others),
        Role::Points => style.fg(warn),
        Role::Selected => style.fg(Color::Black).bg(ours),
        Role::Marked => style.add_modifier(Modifier::UNDERLINED),
        Role::Edge => style.add_modifier(Modifier::REVERSED),
    }
}
