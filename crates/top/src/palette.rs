//! Colors and styles. Color is never the only signal: words, characters and shapes say the same.

use ratatui::style::{Color, Modifier, Style};

/// A palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    /// The terminal's own colors.
    Color,
    /// No colors: bold, dim and reversed.
    Mono,
    /// Blue, orange and yellow, for color-blind users. Source: Okabe and Ito 2008, "Color Universal Design".
    ColorBlind,
}

/// Meaning of a style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Secondary text.
    Quiet,
    /// Titles and keys.
    Title,
    /// Names.
    Strong,
    /// A good value.
    Good,
    /// A warning.
    Warn,
    /// An error.
    Bad,
    /// Runs on this screen and their memory.
    Ours,
    /// Memory planned for them.
    Planned,
    /// Memory of other processes.
    Others,
    /// The line of a curve.
    Curve,
    /// Points on a chart.
    Points,
    /// The selected row in the focused pane.
    Selected,
    /// The selected row in another pane.
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
