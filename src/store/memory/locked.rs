//! Partitions that a call has locked, by number: usually one, which needs no allocation.

/// Locked partitions.
pub struct Locked<G> {
    first: Option<(usize, G)>,
    /// In the order of their numbers.
    others: Vec<(usize, G)>,
}

impl<G> Default for Locked<G> {
    fn default() -> Locked<G> {
        Locked { first: None, others: Vec::new() }
    }
}

impl<G> Locked<G> {
    /// Locks partitions in the order of their numbers, so that no two sessions wait for each other.
    #[inline]
    pub fn new(mut numbers: impl Iterator<Item = usize>, lock: impl Fn(usize) -> G) -> Locked<G> {
        let Some(first) = numbers.next() else { return Locked::default() };
        let Some(second) = numbers.next() else {
            return Locked { first: Some((first, lock(first))), others: Vec::new() };
        };
        let mut numbers: Vec<usize> = [first, second].into_iter().chain(numbers).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let others = numbers.into_iter().map(|number| (number, lock(number))).collect();
        Locked { first: None, others }
    }

    /// Whether none is locked.
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_empty()
    }

    /// A locked partition, by its number.
    #[inline]
    pub fn get(&mut self, number: usize) -> Option<&mut G> {
        match &mut self.first {
            Some((first, guard)) => (*first == number).then_some(guard),
            None => {
                let at = self.others.binary_search_by_key(&number, |(number, _)| *number).ok()?;
                Some(&mut self.others[at].1)
            }
        }
    }
}
