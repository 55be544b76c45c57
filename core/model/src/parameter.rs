//! One parameter tensor: name, shape, initial value.

/// Standard deviation of the initial weights (Radford et al. 2019).
pub const DEVIATION: f64 = 0.02;

/// Initial value of a parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Initial {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// All zero.
    Zeros,
    /// All one.
    Ones,
}

/// One parameter tensor of a unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Name within its block, as in the family's published checkpoints.
    pub name: &'static str,
    /// Shape; matrices are (outputs, inputs).
    pub shape: Vec<usize>,
    /// Initial value.
    pub initial: Initial,
    /// Weight decay applies (matrices and embeddings).
    pub decays: bool,
    /// Names the random stream of its initial values, together with the job's seed: a block (0: before the first, then one each,
    /// then the head, then the tied weight) and a number within. It does not depend on how blocks are cut into segments.
    pub stream: [u64; 2],
}

impl Parameter {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// A matrix with random initial values. The model gives it its stream.
    pub(crate) fn matrix(name: &'static str, rows: usize, columns: usize, deviation: f64) -> Parameter {
        Parameter {
            name,
            shape: vec![rows, columns],
            initial: Initial::Normal(deviation),
            decays: true,
            stream: [0; 2],
        }
    }

    /// A vector of ones or zeros.
    pub(crate) fn vector(name: &'static str, size: usize, initial: Initial) -> Parameter {
        Parameter {
            name,
            shape: vec![size],
            initial,
            decays: false,
            stream: [0; 2],
        }
    }
}

/// Names of the two tensors of a linear layer or a norm. The bias is there only if the model's features say so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerNames {
    /// Weight.
    pub weight: &'static str,
    /// Bias.
    pub bias: &'static str,
}
