//! Which token comes next, by the logits of all tokens. Pure: equal logits, settings and numbers of draws give equal tokens.

use varuna_plan::state::mix;

/// How a token is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    temperature: f64,
    top_p: f64,
    seed: u64,
}

/// A setting that is not allowed.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum SamplingError {
    /// The temperature.
    #[error("--temperature is {0}, allowed is 0 (the most likely token, always) to 100")]
    Temperature(f64),
    /// The share of the probability.
    #[error("--top-p is {0}, allowed is more than 0, at most 1")]
    TopP(f64),
}

impl Sampling {
    /// `temperature` divides the logits; 0 takes the most likely token. Tokens are drawn among the most likely ones that together have the
    /// probability `top_p` (Holtzman et al. 2020, "nucleus sampling").
    ///
    /// # Errors
    /// A setting is not allowed.
    pub fn new(temperature: f64, top_p: f64, seed: u64) -> Result<Sampling, SamplingError> {
        if !(0.0..=100.0).contains(&temperature) {
            return Err(SamplingError::Temperature(temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::TopP(top_p));
        }
        Ok(Sampling {
            temperature,
            top_p,
            seed,
        })
    }

    /// The token of draw `number`, of those that have a logit; none where no logit is a number. Among equally likely ones the first comes first.
    #[must_use]
    pub fn draw(&self, logits: &[f32], number: u64) -> Option<usize> {
        let mut tokens: Vec<usize> = (0..logits.len()).filter(|t| !logits[*t].is_nan()).collect();
        let most_likely = tokens
            .iter()
            .copied()
            .reduce(|best, token| if logits[token] > logits[best] { token } else { best })?;
        let highest = f64::from(logits[most_likely]);
        if self.temperature == 0.0 || !highest.is_finite() {
            return Some(most_likely);
        }
        tokens.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        // Relative to the most likely one, whose weight is 1: nothing overflows.
        let weight = |token: &usize| ((f64::from(logits[*token]) - highest) / self.temperature).exp();
        let weights: Vec<f64> = tokens.iter().map(weight).collect();
        let kept = nucleus(&weights, self.top_p);
        let whole: f64 = weights[..kept].iter().sum();
        let mut left = whole * uniform(self.seed, number);
        for (token, weight) in tokens.iter().zip(&weights[..kept]) {
            left -= weight;
            if left < 0.0 {
                return Some(*token);
            }
        }
        // Rounding may leave a little.
        tokens.get(kept - 1).copied()
    }
}

/// How many of the greatest weights, which come first, make up this share of all; at least one.
fn nucleus(weights: &[f64], share: f64) -> usize {
    let wanted = share * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let reaches = |weight: &f64| {
        sum += weight;
        sum >= wanted
    };
    let last = weights.iter().position(reaches);
    last.map_or(weights.len(), |last| last + 1)
}

/// A number from 0 up to 1, below it, for each seed and number of a draw.
#[expect(clippy::cast_precision_loss, reason = "53 bits are what a double holds")]
fn uniform(seed: u64, number: u64) -> f64 {
    let bits = mix(mix(seed, 0x7e87), number) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampling(temperature: f64, top_p: f64, seed: u64) -> Sampling {
        Sampling::new(temperature, top_p, seed).unwrap()
    }

    fn probabilities(logits: &[f32], temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = logits
            .iter()
            .map(|l| (f64::from(*l) / temperature).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect()
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-8.0f32..8.0, 1..60)
    }

    proptest! {
        #[test]
        fn top_p_draws_only_the_most_likely_tokens(
            logits in logits(), temperature in 0.2f64..3.0, top_p in 0.01f64..1.0, seed: u64,
        ) {
            let p = probabilities(&logits, temperature);
            for number in 0..20 {
                let token = sampling(temperature, top_p, seed).draw(&logits, number).unwrap();
                let before: f64 = p.iter().filter(|other| **other > p[token]).sum();
                prop_assert!(before < top_p + 1e-9, "{token} comes after {before}");
            }
        }

        #[test]
        fn coldest_and_narrowest_draw_is_the_most_likely_token(logits in logits(), seed: u64) {
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for of in [sampling(0.0, 1.0, seed), sampling(1.0, 1e-9, seed)] {
                prop_assert_eq!(logits[of.draw(&logits, 3).unwrap()], best);
            }
        }

        #[test]
        fn a_draw_follows_from_its_seed_and_its_number(logits in logits(), seed: u64, number: u64) {
            let of = sampling(0.9, 0.8, seed);
            prop_assert_eq!(of.draw(&logits, number), of.draw(&logits, number));
        }

        #[test]
        fn what_is_no_number_is_never_drawn(mut logits in logits(), at: prop::sample::Index, seed: u64) {
            let at = at.index(logits.len());
            logits[at] = f32::NAN;
            let drawn = sampling(1.0, 1.0, seed).draw(&logits, 0);
            prop_assert_ne!(drawn, Some(at));
            prop_assert_eq!(drawn.is_none(), logits.len() == 1);
        }
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        for (temperature, top_p) in [(1.0, 1.0), (0.5, 1.0), (2.0, 0.7)] {
            let mut p = probabilities(&logits, temperature);
            if top_p < 1.0 {
                // The two most probable tokens are within the share.
                p[0] = 0.0;
                p[3] = 0.0;
                let sum: f64 = p.iter().sum();
                p.iter_mut().for_each(|p| *p /= sum);
            }
            let mut counts = [0u32; 4];
            let draws = 40_000u32;
            for number in 0..draws {
                counts[sampling(temperature, top_p, 7)
                    .draw(&logits, number.into())
                    .unwrap()] += 1;
            }
            for (count, p) in counts.iter().zip(&p) {
                let off = f64::from(*count) / f64::from(draws) - p;
                assert!(off.abs() < 0.01, "{counts:?} of {p}");
            }
        }
    }

    #[test]
    fn other_seeds_draw_other_tokens() {
        let logits = [0.0f32; 1000];
        let drawn = |seed| -> Vec<_> {
            (0..8)
                .map(|n| sampling(1.0, 1.0, seed).draw(&logits, n))
                .collect()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let mut different = drawn(1);
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 5, "{different:?}");
    }

    #[test]
    fn settings_that_mean_nothing_are_refused_with_what_is_allowed() {
        for temperature in [-0.1, 101.0, f64::NAN] {
            let why = Sampling::new(temperature, 1.0, 0).unwrap_err().to_string();
            assert!(
                why.starts_with(&format!("--temperature is {temperature}, allowed is 0")),
                "{why}"
            );
        }
        for top_p in [0.0, 1.1, f64::NAN] {
            let why = Sampling::new(1.0, top_p, 0).unwrap_err().to_string();
            assert!(
                why.starts_with(&format!("--top-p is {top_p}, allowed is more than 0")),
                "{why}"
            );
        }
    }
}
