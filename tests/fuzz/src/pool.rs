//! The inputs that are mutated: those of the corpus, and those with a new answer.

use crate::corpus::Named;
use varuna_sim::Rng;

/// Maximum number of inputs with new answers, for accepted and for refused ones.
const KEPT: usize = 2048;

/// The inputs to mutate.
pub(crate) struct Pool {
    /// The inputs of the corpus, which stay.
    corpus: Vec<Vec<u8>>,
    /// The inputs with a new answer: refused ones and accepted ones.
    new: [Vec<Vec<u8>>; 2],
}

impl Pool {
    pub(crate) fn new(corpus: &[Named]) -> Pool {
        Pool {
            corpus: corpus.iter().map(|(_, input)| input.clone()).collect(),
            new: Default::default(),
        }
    }

    pub(crate) fn keep(&mut self, input: Vec<u8>, accepted: bool, rng: &mut Rng) {
        let inputs = &mut self.new[usize::from(accepted)];
        if inputs.len() >= KEPT {
            let at = usize::try_from(rng.below(KEPT as u64)).unwrap_or(0);
            inputs.swap_remove(at);
        }
        inputs.push(input);
    }

    /// Picks one of them. Accepted inputs are rare and more useful, so they are picked more often.
    pub(crate) fn pick(&self, rng: &mut Rng) -> &[u8] {
        let [refused, accepted] = &self.new;
        let from = match rng.below(10) {
            0..=2 => &self.corpus,
            3..=6 => accepted,
            _ => refused,
        };
        let from = if from.is_empty() { &self.corpus } else { from };
        let at = usize::try_from(rng.below(from.len() as u64)).unwrap_or(0);
        from.get(at).map_or(&[], Vec::as_slice)
    }
}
