//! The world's only source of chance.

use varuna_plan::state::mix;

/// splitmix64 (Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0, 7)
    }
    /// A number in `0..n`; 0 for n = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.draw() % n }
    }
    /// A number in `a..=b`.
    pub fn range(&mut self, a: u64, b: u64) -> u64 {
        a + self.below(b - a + 1)
    }
    /// True with this probability, in per cent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// One of the items; none of an empty slice.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let n = self.below(items.len() as u64);
        items.get(usize::try_from(n).unwrap_or(0)).copied()
    }
}
