//! Selection in a list: the first row until the user selects another. A selection is kept by the row's key, so it
//! follows its row when the order changes.

/// A selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List<K> {
    key: Option<K>,
    /// Last known index of the row.
    index: usize,
}

impl<K> Default for List<K> {
    fn default() -> Self {
        Self { key: None, index: 0 }
    }
}

impl<K: Clone + PartialEq> List<K> {
    /// Index of the selected row; `None` if there are no rows.
    pub fn index<'a>(&self, keys: impl ExactSizeIterator<Item = &'a K> + Clone) -> Option<usize>
    where
        K: 'a,
    {
        let count = keys.len();
        let place = self.key.as_ref().and_then(|key| keys.clone().position(|other| other == key));
        place.or_else(|| (count > 0).then(|| self.index.min(count - 1)))
    }

    /// Updates the selection for the current rows.
    pub fn settle(&mut self, keys: &[K]) {
        if self.key.is_some() {
            let index = self.index(keys.iter());
            (self.index, self.key) = (index.unwrap_or(0), index.map(|index| keys[index].clone()));
        }
    }

    /// Moves the selection down, or up if negative.
    pub fn step(&mut self, keys: &[K], rows: isize) {
        let index = self.index(keys.iter()).unwrap_or(0);
        self.index = index.saturating_add_signed(rows).min(keys.len().saturating_sub(1));
        self.key = keys.get(self.index).cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_follows_its_row_or_takes_the_next_if_that_is_gone() {
        let mut list = List::default();
        list.settle(&[3]);
        assert_eq!(list.index([1, 2, 3].iter()), Some(0), "3 was not selected");
        list.step(&[1, 2, 3], 1);
        assert_eq!(list.index([3, 2, 1, 0].iter()), Some(1));
        list.settle(&[0, 0, 0, 2]);
        assert_eq!(list.index([0, 0, 0, 2].iter()), Some(3), "the row has moved");
        list.settle(&[4, 5]);
        assert_eq!(list.index([4, 5].iter()), Some(1), "the row is gone");
        list.settle(&[]);
        assert_eq!(list.index([].iter()), None);
        list.step(&[], -5);
        list.step(&[7, 8], isize::MAX);
        assert_eq!(list.index([7, 8].iter()), Some(1));
        list.step(&[7, 8], isize::MIN);
        assert_eq!(list.index([7, 8].iter()), Some(0));
    }
}
