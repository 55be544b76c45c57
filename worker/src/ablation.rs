//! Optimizations of steps and of changes of plan that can be switched off, so that the gain of each can be measured in the same program.
//! None of them changes what is trained: without it, steps have the same bits or differ by rounding.

use std::fmt;
use std::str::FromStr;

/// One thing that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ablation {
    /// All kernels of our own: libtorch's operators compute instead; dropout then takes many passes instead of one.
    Kernels,
    /// The kernel of the optimizer.
    Optimizer,
    /// The kernel of layer norm.
    Norm,
    /// The kernel of bias and GELU.
    Gelu,
    /// The kernel of dropout.
    Dropout,
    /// The kernel of the loss over a vocabulary.
    Loss,
    /// The kernel of biases' gradients.
    Bias,
    /// The kernel of the squares of gradients.
    Squares,
    /// Streams for copies: without them, a GPU copies in the stream that computes.
    Streams,
    /// Pinned memory: without it, libtorch copies between a GPU and pageable memory, and the host waits.
    Pinned,
    /// Running ahead of a GPU: without it, the host waits for each task before it hands over the next.
    Ahead,
    /// Chunks of the head and its loss: without them, all logits of a micro-batch exist at once.
    Chunks,
    /// Rows that fill a vocabulary up in the 16-bit copy.
    Padding,
    /// Copies of state on the device for its readers: without them, readers use the state itself, and the optimizer waits for them.
    StateCopies,
    /// Reading samples ahead: without it, a step reads them when it needs them.
    ReadAhead,
    /// Copies that follow the run. If one worker of a planned change does without them, all workers that get units load these after the
    /// switch, while training waits. Such a worker keeps no spare copies, and nobody keeps copies of its units.
    Following,
    /// Steps before all state has arrived: if one worker does without them, all workers wait for the state that they lack.
    ParametersFirst,
}

impl Ablation {
    /// All ablations.
    pub const ALL: [Ablation; 17] = [
        Ablation::Kernels,
        Ablation::Optimizer,
        Ablation::Norm,
        Ablation::Gelu,
        Ablation::Dropout,
        Ablation::Loss,
        Ablation::Bias,
        Ablation::Squares,
        Ablation::Streams,
        Ablation::Pinned,
        Ablation::Ahead,
        Ablation::Chunks,
        Ablation::Padding,
        Ablation::StateCopies,
        Ablation::ReadAhead,
        Ablation::Following,
        Ablation::ParametersFirst,
    ];

    /// Name of the ablation on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Ablation::Kernels => "kernels",
            Ablation::Optimizer => "optimizer",
            Ablation::Norm => "norm",
            Ablation::Gelu => "gelu",
            Ablation::Dropout => "dropout",
            Ablation::Loss => "loss",
            Ablation::Bias => "bias",
            Ablation::Squares => "squares",
            Ablation::Streams => "streams",
            Ablation::Pinned => "pinned",
            Ablation::Ahead => "ahead",
            Ablation::Chunks => "chunks",
            Ablation::Padding => "padding",
            Ablation::StateCopies => "state-copies",
            Ablation::ReadAhead => "read-ahead",
            Ablation::Following => "following",
            Ablation::ParametersFirst => "parameters-first",
        }
    }
}

/// What a worker leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Ablations([bool; Ablation::ALL.len()]);

impl Ablations {
    /// Nothing is left out.
    pub const NONE: Ablations = Ablations([false; Ablation::ALL.len()]);

    /// Adds an ablation.
    #[must_use]
    pub fn and(mut self, ablation: Ablation) -> Ablations {
        self.0[ablation as usize] = true;
        self
    }

    /// Whether this is left out.
    #[must_use]
    pub fn has(self, ablation: Ablation) -> bool {
        self.0[ablation as usize]
    }
}

impl fmt::Display for Ablations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Ablation::ALL.into_iter().filter(|a| self.has(*a));
        f.write_str(&names.map(Ablation::name).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for Ablations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

/// A name that is not one of an ablation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--without names {name:?}; allowed are {}, several with commas between", Ablation::ALL.map(Ablation::name).join(", "))]
pub struct UnknownAblation {
    /// The name that was given.
    pub name: String,
}

impl FromStr for Ablations {
    type Err = UnknownAblation;

    fn from_str(names: &str) -> Result<Ablations, UnknownAblation> {
        let named = |name: &str| {
            let found = Ablation::ALL.into_iter().find(|a| a.name() == name);
            found.ok_or_else(|| UnknownAblation {
                name: name.to_owned(),
            })
        };
        let mut names = names.split(',').filter(|name| !name.is_empty());
        names.try_fold(Ablations::NONE, |all, name| Ok(all.and(named(name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own_and_a_place_of_its_own() {
        for (place, ablation) in Ablation::ALL.into_iter().enumerate() {
            assert_eq!(ablation as usize, place);
            let alone: Ablations = ablation.name().parse().unwrap();
            assert_eq!(alone, Ablations::NONE.and(ablation));
            assert!(Ablation::ALL.into_iter().all(|a| alone.has(a) == (a == ablation)));
            assert_eq!(alone.to_string(), ablation.name());
        }
        assert_eq!("".parse(), Ok(Ablations::NONE));
        let two: Ablations = "padding,kernels".parse().unwrap();
        assert_eq!(two.to_string(), "kernels,padding");
    }

    #[test]
    fn another_name_is_refused_with_the_list() {
        let why = "kernels,speed".parse::<Ablations>().unwrap_err().to_string();
        let expected = "--without names \"speed\"; allowed are kernels, optimizer, norm, gelu, dropout, loss, bias, squares, streams, pinned, \
                        ahead, chunks, padding, state-copies, read-ahead, following, parameters-first, several with commas between";
        assert_eq!(why, expected);
    }
}
