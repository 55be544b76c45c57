//! What the optimizer has counted, as elements of a message: a byte in each, which all formats represent exactly.

use varuna_plan::{LossScale, OptimizerProgress, ScaleFactor};

/// Elements of the message.
pub(super) const NUMBERS: usize = 24;

/// The counters, each with the lowest byte first.
pub(super) fn encoded(progress: OptimizerProgress) -> [f32; NUMBERS] {
    let OptimizerProgress {
        adam_steps,
        loss_scale: LossScale { factor, clean_steps },
        failed_in_a_row,
    } = progress;
    let mut numbers = [0.0; NUMBERS];
    let bytes = adam_steps.to_le_bytes().into_iter();
    let bytes = bytes.chain(factor.value().to_le_bytes());
    let bytes = bytes.chain(clean_steps.to_le_bytes());
    let bytes = bytes.chain(failed_in_a_row.to_le_bytes());
    for (number, byte) in numbers.iter_mut().zip(bytes) {
        *number = f32::from(byte);
    }
    numbers
}

/// The counters of a message.
///
/// # Errors
/// What cannot be, and what is allowed.
pub(super) fn decoded(numbers: &[f32]) -> Result<OptimizerProgress, String> {
    let bytes: Vec<u8> = numbers.iter().map(|n| byte(*n)).collect::<Result<_, _>>()?;
    let &[
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
        n,
        o,
        p,
        q,
        r,
        s,
        t,
        u,
        v,
        w,
        x,
    ] = bytes.as_slice()
    else {
        return Err(format!("{} numbers; {NUMBERS} are needed", bytes.len()));
    };
    let factor = u64::from_le_bytes([i, j, k, l, m, n, o, p]);
    Ok(OptimizerProgress {
        adam_steps: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        loss_scale: LossScale {
            factor: ScaleFactor::try_from(factor).map_err(|e| e.to_string())?,
            clean_steps: u32::from_le_bytes([q, r, s, t]),
        },
        failed_in_a_row: u32::from_le_bytes([u, v, w, x]),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number from 0 to 255 is a byte"
)]
fn byte(number: f32) -> Result<u8, String> {
    match number.fract() == 0.0 && (0.0..=255.0).contains(&number) {
        true => Ok(number as u8),
        false => Err(format!(
            "{number} in place of a byte; whole numbers from 0 to 255 are allowed"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::step::boundary::{kind_of, packet_of};
    use tch::{Kind, Tensor};
    use varuna_frames::ElementFormat;
    use varuna_torch::vec_from_tensor;

    fn progress(adam_steps: u64, exponent: u8, clean_steps: u32, failed_in_a_row: u32) -> OptimizerProgress {
        OptimizerProgress {
            adam_steps,
            loss_scale: LossScale {
                factor: ScaleFactor::two_to(exponent),
                clean_steps,
            },
            failed_in_a_row,
        }
    }

    #[test]
    fn counters_survive_every_format() {
        let all = [
            OptimizerProgress::START,
            progress(u64::MAX, 32, u32::MAX, u32::MAX),
            progress(0x0102_0304_0506_0708, 17, 0xfdfe_ff00, 1 << 31),
        ];
        for format in ElementFormat::ALL {
            for counted in all {
                let sent = Tensor::from_slice(&encoded(counted)).to_kind(kind_of(format));
                let packet = packet_of(&sent, format).unwrap();
                assert_eq!(packet.elements(), NUMBERS);
                let came = vec_from_tensor::<f32>(&sent.to_kind(Kind::Float)).unwrap();
                assert_eq!(decoded(&came), Ok(counted), "{format}");
            }
        }
    }

    #[test]
    fn what_is_no_counter_is_refused() {
        let sound = encoded(progress(5, 3, 2, 1));
        for (place, number, why) in [
            (0, 0.5, "0.5 in place of a byte"),
            (1, 256.0, "256 in place of a byte"),
            (2, -1.0, "-1 in place of a byte"),
            (3, f32::NAN, "NaN in place of a byte"),
            (8, 3.0, "a loss scale of 3"),
            (15, 1.0, "a loss scale of 72057594037927944"),
        ] {
            let mut numbers = sound;
            numbers[place] = number;
            let refused = decoded(&numbers).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
        assert!(decoded(&sound[1..]).unwrap_err().starts_with("23 numbers"));
    }
}
