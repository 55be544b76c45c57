//! How much a receiver accepts of each kind of frame. A longer frame is refused before memory is allocated for it: a peer that has proven
//! itself may still be faulty.

use crate::header::Header;
use crate::{ElementFormat, FrameError, Kind, StateError, TransferHeader};
use varuna_plan::Moments;

/// Elements of one part of a state: 1 MiB, so that urgent frames wait for about a millisecond at most.
pub const PART_ELEMENTS: usize = 1 << 18;
/// Longest header of a state or a gradient, bytes: numbers and names of states.
const STATE_HEADER: u32 = 1 << 10;
/// Elements of a message about a communicator's id: an answer, and the 128 bytes of the id.
pub const COMMUNICATOR_ID_ELEMENTS: u32 = 33;
/// Longest digest, bytes.
const DIGEST: u32 = 32;
/// Bytes of an element of a state or a gradient, whose numbers are float32.
const STATE_ELEMENT: u32 = 4;

/// How much a receiver accepts. The receiver sets the limits that follow from the job; before that, or without a job, the default applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest tensor of a step, elements.
    pub tensor_elements: u32,
    /// The format of boundary activations, their gradients, and gathered parameters. None: any. Parts of reductions are always float32.
    pub boundary_format: Option<ElementFormat>,
    /// Longest protocol message, bytes.
    pub message_bytes: u32,
    /// Elements of each unit's parameters, in order. None: of any number.
    pub unit_parameters: Option<Vec<u64>>,
    /// The moments that a state has besides the parameters.
    pub moments: Moments,
}

impl Default for Limits {
    /// Accepts boundary activations of 256 Mi elements in any format, messages of 16 MiB, as from a coordinator, and any state.
    fn default() -> Limits {
        Limits {
            tensor_elements: 1 << 28,
            boundary_format: None,
            message_bytes: 1 << 24,
            unit_parameters: None,
            moments: Moments::Adam,
        }
    }
}

impl Limits {
    /// The length of a payload, if it is accepted.
    pub(crate) fn payload(&self, header: &Header) -> Result<usize, FrameError> {
        let Header {
            kind,
            format: found,
            length,
            ..
        } = *header;
        let most = match kind {
            Kind::Activation | Kind::Gradient | Kind::Ring | Kind::Parameters => {
                let element = self.tensor_format(header)?.bytes();
                self.tensor_elements.saturating_mul(element)
            }
            Kind::CommunicatorId => COMMUNICATOR_ID_ELEMENTS * self.tensor_format(header)?.bytes(),
            _ if found.is_some() => {
                let expected = "none";
                return Err(FrameError::OtherFormat {
                    kind,
                    found,
                    expected,
                });
            }
            Kind::Message => self.message_bytes,
            Kind::State | Kind::UnitGradient | Kind::PreparedGradient => STATE_HEADER,
            Kind::Part => PART_ELEMENTS as u32 * STATE_ELEMENT,
            Kind::End => DIGEST,
        };
        let long = FrameError::Long { kind, length, most };
        usize::try_from(length)
            .ok()
            .filter(|_| length <= most)
            .ok_or(long)
    }

    /// The format of a tensor of a step, if it is accepted.
    pub(crate) fn tensor_format(&self, header: &Header) -> Result<ElementFormat, FrameError> {
        let Header {
            kind, format: found, ..
        } = *header;
        let own = match kind {
            Kind::Ring | Kind::CommunicatorId => Some(ElementFormat::Float32),
            _ => self.boundary_format,
        };
        let fits = |format: &ElementFormat| own.is_none_or(|own| own == *format);
        found.filter(fits).ok_or(FrameError::OtherFormat {
            kind,
            found,
            expected: own.map_or("any known one", ElementFormat::name),
        })
    }

    /// Checks that the unit has a state or a gradient of this number of elements. A skipped step has no gradient, and neither has a unit
    /// whose norm shows that the step will be skipped.
    pub(crate) fn transfer(&self, header: &TransferHeader) -> Result<(), StateError> {
        let (unit, announced) = (header.unit(), header.elements());
        let Some(known) = &self.unit_parameters else {
            return Ok(());
        };
        let parts = 1 + self.moments.of_parameter() as u64;
        let expected = known.get(unit.index()).map(|parameters| match header {
            TransferHeader::State(_) => parameters.saturating_mul(parts),
            TransferHeader::Gradient(gradient) if gradient.decision.overflow => 0,
            TransferHeader::Prepared(gradient) if gradient.norm.overflow => 0,
            TransferHeader::Gradient(_) | TransferHeader::Prepared(_) => *parameters,
        });
        match expected {
            Some(expected) if expected == announced => Ok(()),
            Some(expected) => Err(StateError::Size {
                unit,
                announced,
                expected,
            }),
            None => Err(StateError::Unit {
                unit,
                units: known.len(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GradientHeader, PreparedHeader, StateHeader};
    use varuna_plan::state::UnitNorm;
    use varuna_plan::{Decision, Generation, StateId, Step, Unit};

    /// The decision of a step that is skipped, or of one that is not.
    fn decision(overflow: bool) -> Decision {
        Decision {
            parent: StateId::INITIAL,
            id: StateId::INITIAL,
            norm2: 1.0,
            overflow,
            before: varuna_plan::OptimizerProgress::START,
            loss: 1.0,
            eval_loss: None,
            switch: None,
        }
    }

    fn header(kind: Kind, format: Option<ElementFormat>, length: u32) -> Header {
        Header {
            kind,
            format,
            first: 0,
            second: 0,
            step: Step(0),
            length,
            checksum: 0,
        }
    }

    #[test]
    fn each_kind_has_its_own_limit() {
        use ElementFormat::{BFloat16, Float16, Float32};
        let limits = Limits {
            tensor_elements: 10,
            message_bytes: 7,
            ..Limits::default()
        };
        let mosts = [
            (Kind::Activation, Some(Float32), 40),
            (Kind::Gradient, Some(Float32), 40),
            (Kind::Activation, Some(BFloat16), 20),
            (Kind::Gradient, Some(Float16), 20),
            (Kind::Ring, Some(Float32), 40),
            (Kind::Parameters, Some(BFloat16), 20),
            (Kind::CommunicatorId, Some(Float32), 132),
            (Kind::Message, None, 7),
            (Kind::State, None, 1024),
            (Kind::UnitGradient, None, 1024),
            (Kind::PreparedGradient, None, 1024),
            (Kind::Part, None, 1 << 20),
            (Kind::End, None, 32),
        ];
        for (kind, format, most) in mosts {
            assert_eq!(limits.payload(&header(kind, format, most)), Ok(most as usize));
            let length = most + 1;
            assert_eq!(
                limits.payload(&header(kind, format, length)),
                Err(FrameError::Long { kind, length, most })
            );
        }
    }

    #[test]
    fn each_kind_has_its_own_element_format() {
        use ElementFormat::{BFloat16, Float16, Float32};
        let fits = |boundary_format, kind, format| {
            let limits = Limits {
                boundary_format,
                ..Limits::default()
            };
            limits.payload(&header(kind, format, 0)).is_ok()
        };
        let formats = [None, Some(Float32), Some(BFloat16), Some(Float16)];
        for (boundary, kind, expected) in [
            (None, Kind::Activation, [false, true, true, true]),
            (Some(BFloat16), Kind::Activation, [false, false, true, false]),
            (Some(Float32), Kind::Gradient, [false, true, false, false]),
            (Some(BFloat16), Kind::Ring, [false, true, false, false]),
            (Some(BFloat16), Kind::Parameters, [false, false, true, false]),
            (Some(BFloat16), Kind::CommunicatorId, [false, true, false, false]),
            (Some(BFloat16), Kind::Message, [true, false, false, false]),
            (None, Kind::Part, [true, false, false, false]),
        ] {
            assert_eq!(
                formats.map(|format| fits(boundary, kind, format)),
                expected,
                "{kind}"
            );
        }
        let said = |limits: Limits, format| {
            let refused = limits.payload(&header(Kind::Gradient, format, 2));
            refused.unwrap_err().to_string()
        };
        let own = Limits {
            boundary_format: Some(BFloat16),
            ..Limits::default()
        };
        assert_eq!(
            said(own, Some(Float32)),
            "a gradient of an activation in the element format float32; allowed is bfloat16"
        );
        assert!(
            said(Limits::default(), None).ends_with("in the element format none; allowed is any known one")
        );
    }

    #[test]
    fn a_state_and_a_gradient_have_the_sizes_of_their_unit() {
        let state = |unit, elements| {
            TransferHeader::State(StateHeader {
                unit: Unit(unit),
                id: StateId::INITIAL,
                decision: None,
                progress: varuna_plan::OptimizerProgress::START,
                elements,
            })
        };
        let gradient = |unit, overflow, elements| {
            TransferHeader::Gradient(GradientHeader {
                unit: Unit(unit),
                decision: decision(overflow),
                elements,
            })
        };
        let prepared = |unit, overflow, elements| {
            TransferHeader::Prepared(PreparedHeader {
                unit: Unit(unit),
                run_gen: Generation(2),
                step: Step(7),
                norm: UnitNorm {
                    norm2: 1.0,
                    overflow,
                    before: varuna_plan::OptimizerProgress::START,
                    loss: 0.0,
                    eval_loss: None,
                },
                elements,
            })
        };
        let limits = Limits {
            unit_parameters: Some(vec![1, 2]),
            ..Limits::default()
        };
        assert!(limits.transfer(&state(1, 6)).is_ok());
        assert!(limits.transfer(&prepared(1, false, 2)).is_ok());
        assert!(limits.transfer(&prepared(1, true, 0)).is_ok());
        assert!(limits.transfer(&gradient(1, false, 2)).is_ok());
        assert!(limits.transfer(&gradient(1, true, 0)).is_ok());
        let said = |header| limits.transfer(&header).unwrap_err().to_string();
        for (header, expected) in [
            (state(1, u64::MAX), "it has 6"),
            (state(2, 6), "there are 2 units"),
            (gradient(1, false, 6), "it has 2"),
            (gradient(1, false, 0), "it has 2"),
            (gradient(1, true, 2), "it has 0"),
            (gradient(2, false, 2), "there are 2 units"),
            (prepared(1, false, 0), "it has 2"),
            (prepared(1, false, u64::MAX), "it has 2"),
            (prepared(1, true, 2), "it has 0"),
            (prepared(3, false, 2), "there are 2 units"),
        ] {
            assert!(said(header).contains(expected), "{}", said(header));
        }
        assert!(Limits::default().transfer(&state(9, u64::MAX)).is_ok());
        let of_sgd = Limits {
            moments: Moments::Momentum,
            ..limits
        };
        assert!(of_sgd.transfer(&state(1, 4)).is_ok());
        assert!(of_sgd.transfer(&gradient(1, false, 2)).is_ok());
        let why = of_sgd.transfer(&state(1, 6)).unwrap_err().to_string();
        assert!(why.contains("it has 4"), "{why}");
    }
}
