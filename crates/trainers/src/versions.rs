//! Versions of PyTorch and transformers that a run uses.
//! Not here: what differs between them (`plimsoll_eager`).

use std::fmt;

/// A library's version, without its patch level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u16,
    /// The second number.
    pub minor: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The versions of a run's libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Libraries {
    /// PyTorch.
    pub torch: Version,
    /// Hugging Face's transformers.
    pub transformers: Version,
}

impl Default for Libraries {
    /// The newest known versions.
    fn default() -> Self {
        Self { torch: Library::Torch.newest(), transformers: Library::Transformers.newest() }
    }
}

/// A library whose version affects memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// PyTorch.
    Torch,
    /// Hugging Face's transformers.
    Transformers,
}

impl Library {
    /// The known versions: a major version with its first and last minor version, in ascending order.
    const fn known(self) -> &'static [(u16, [u16; 2])] {
        match self {
            Self::Torch => &[(2, [4, 15])],
            Self::Transformers => &[(4, [54, 57]), (5, [0, 24])],
        }
    }

    fn newest(self) -> Version {
        let (major, [_, minor]) = self.known()[self.known().len() - 1];
        Version { major, minor }
    }

    /// Reads a version such as `4.57` or `2.14.1+cu130`.
    /// Errors: the text is not a version, or the version is unknown; the message lists the known ones.
    pub fn read(self, text: &str) -> Result<Version, String> {
        let mut numbers = text.trim().split(['.', '+']).map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            return Err(format!("`{text}` is not a version such as `{}`", self.newest()));
        };
        let is_known =
            self.known().iter().any(|(known, [first, last])| *known == major && (*first..=*last).contains(&minor));
        let ranges = self.known().iter().map(|(major, [first, last])| format!("{major}.{first} to {major}.{last}"));
        match is_known {
            true => Ok(Version { major, minor }),
            false => Err(format!("the known versions are {}", ranges.collect::<Vec<_>>().join(" and "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_within_the_ranges_are_read() {
        for (library, text, expected) in [
            (Library::Transformers, "4.57.6", Ok((4, 57))),
            (Library::Transformers, "5.0", Ok((5, 0))),
            (Library::Torch, "2.14.1+cu130", Ok((2, 14))),
            (Library::Transformers, "4.53.3", Err("the known versions are 4.54 to 4.57 and 5.0 to 5.24")),
            (Library::Transformers, "4.58", Err("the known versions are 4.54 to 4.57 and 5.0 to 5.24")),
            (Library::Torch, "3.0", Err("the known versions are 2.4 to 2.15")),
            (Library::Torch, "2", Err("`2` is not a version such as `2.15`")),
            (Library::Torch, "new", Err("`new` is not a version such as `2.15`")),
            (Library::Torch, "2.99999", Err("`2.99999` is not a version such as `2.15`")),
        ] {
            let expected = expected.map(|(major, minor)| Version { major, minor }).map_err(str::to_owned);
            assert_eq!(library.read(text), expected, "{text}");
        }
        let newest = Libraries::default();
        assert_eq!((newest.torch.to_string(), newest.transformers.to_string()), ("2.15".into(), "5.24".into()));
    }
}
