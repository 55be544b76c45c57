//! The models that a job can name.

use crate::transformer::Transformer;
use crate::{bert, gpt2, llama3, qwen3};

/// All of them, each with its names, the usual one first.
fn all() -> impl Iterator<Item = (&'static [&'static str], Transformer)> {
    gpt2::PRESETS
        .into_iter()
        .chain(llama3::PRESETS)
        .chain(qwen3::PRESETS)
        .chain(bert::PRESETS)
}

/// The model of a preset; none for a name that is not one.
#[must_use]
pub fn preset(name: &str) -> Option<Transformer> {
    let (_, model) = all().find(|(names, _)| names.contains(&name))?;
    Some(model)
}

/// Every name of every preset.
#[must_use]
pub fn names() -> Vec<&'static str> {
    all().flat_map(|(names, _)| names).copied().collect()
}

/// The usual name of each preset.
#[must_use]
pub fn usual_names() -> Vec<&'static str> {
    all().map(|(names, _)| names[0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_number_of_parameters() {
        let millions = |name| preset(name).unwrap().parameter_count() as f64 / 1e6;
        for (name, published) in [
            ("gpt2-small", 124.4),
            ("gpt2-medium", 354.8),
            ("gpt2-large", 774.0),
            ("gpt2-1.5b", 1557.6),
            ("bert-base", 109.5),
            ("bert-large", 335.2),
        ] {
            assert!(
                (millions(name) - published).abs() < 0.1,
                "{name}: {}",
                millions(name)
            );
        }
        // The number of elements in the weights' files that the authors have published.
        for (name, published) in [
            ("llama3.2-1b", 1_235_814_400),
            ("llama3.2-3b", 3_212_749_824),
            ("llama3-8b", 8_030_261_248),
            ("qwen3-0.6b", 596_049_920),
            ("qwen3-1.7b", 1_720_574_976),
            ("qwen3-8b", 8_190_735_360),
        ] {
            assert_eq!(preset(name).unwrap().parameter_count(), published, "{name}");
        }
        assert!((2400.0..2600.0).contains(&millions("gpt2-2.5b")));
        assert!((8250.0..8350.0).contains(&millions("gpt2-8.3b")));
        for (name, published) in [
            ("gpt2-tiny", 10.9),
            ("llama-tiny", 9.7),
            ("qwen3-tiny", 7.7),
            ("bert-tiny", 11.0),
        ] {
            let found = millions(name);
            assert!((found - published).abs() < 0.06, "{name}: {found}");
        }
    }

    #[test]
    fn every_name_is_one_models() {
        assert_eq!(preset("gpt2-xl"), preset("gpt2-1.5b"));
        assert_eq!(preset("gpt2-small"), Some(gpt2::SMALL));
        assert_eq!(preset("gpt3"), None);
        let mut names = names();
        assert!(usual_names().iter().all(|name| names.contains(name)));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_presets_sizes_fit_each_other() {
        for name in names() {
            let model = preset(name).unwrap();
            assert!(model.heads.is_multiple_of(model.kv_heads()), "{name}");
            let own = model.features.head_size.is_some();
            assert!(own || model.hidden_size.is_multiple_of(model.heads), "{name}");
            assert!(model.head_size().is_multiple_of(2), "{name}");
        }
    }
}
