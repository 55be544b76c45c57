//! The part of a job file (`spec.model`) that describes a model, so that a job can continue from an import of it. Pure. Only
//! [`varuna_api::parse_job`] decides what the fields mean, and it reads each text before it is returned.

use varuna_api::manifest::{API_VERSION, KIND};
use varuna_api::parse_job;
use varuna_model::{Features, Mlp, Norm, Positions, Real, Rotary, Scaling, Transformer, gpt2, presets};

/// Fields of `spec.model` with their values as YAML: the preset, sizes, features.
type Fields = Vec<(&'static str, String)>;

/// The part of a job file that describes this model, as YAML from `spec:` on: a preset if one is the model; otherwise sizes and features,
/// together with the preset that leaves the fewest to name, if there is one. None if no job file can describe the model.
#[must_use]
pub fn job_model(model: &Transformer) -> Option<String> {
    let names = presets::usual_names().into_iter().map(Some);
    let mut written: Vec<Fields> = std::iter::once(None)
        .chain(names)
        .map(|preset| fields(model, preset))
        .collect();
    written.sort_by_key(Vec::len);
    let mut texts = written.iter().map(|fields| text(fields));
    texts.find(|text| says(text, model))
}

/// A preset, if any, and the fields that differ from it.
fn fields(model: &Transformer, preset: Option<&'static str>) -> Fields {
    let known = preset.and_then(presets::preset);
    let mut fields = Fields::new();
    let mut add = |name: &'static str, value: Option<String>| fields.extend(value.map(|value| (name, value)));
    add("preset", preset.map(str::to_owned));
    let size = |of: fn(&Transformer) -> u32| {
        let own = of(model);
        let is_known = known.as_ref().is_some_and(|known| of(known) == own);
        (!is_known).then(|| own.to_string())
    };
    add("layers", size(|m| m.layers));
    add("hiddenSize", size(|m| m.hidden_size));
    add("heads", size(|m| m.heads));
    add("sequenceLength", size(|m| m.sequence_length));
    add("vocabularySize", size(|m| m.vocabulary_size));
    // Without a preset, omitted fields are as in GPT-2.
    let known = known.unwrap_or(gpt2::SMALL);
    let tied = differing(model.tied_head, known.tied_head);
    add("tiedHead", tied.map(|tied| tied.to_string()));
    add("dropout", differing(model.dropout, known.dropout).map(real));
    fields.extend(features(&model.features, &known.features));
    fields
}

/// The features that differ from the known ones.
fn features(own: &Features, known: &Features) -> Fields {
    let mut fields = Fields::new();
    let mut add = |name: &'static str, value: Option<String>| fields.extend(value.map(|value| (name, value)));
    let size = |of: fn(&Features) -> Option<u32>| {
        let own = differing(of(own), of(known)).flatten();
        own.map(|size| size.to_string())
    };
    let switch = |of: fn(&Features) -> bool| differing(of(own), of(known)).map(|on| on.to_string());
    add("kvHeads", size(|f| f.kv_heads));
    add("headSize", size(|f| f.head_size));
    add("qkNorm", switch(|f| f.qk_norm));
    add("innerSize", size(|f| f.inner_size));
    add(
        "mlp",
        differing(own.mlp, known.mlp).map(|mlp| mlp_name(mlp).to_owned()),
    );
    for (name, value) in positions(own.positions, known.positions) {
        add(name, Some(value));
    }
    add("slidingWindow", size(|f| f.sliding_window));
    add("bidirectional", switch(|f| f.bidirectional));
    let norm = differing(own.norm, known.norm).map(norm_name);
    add("norm", norm.map(str::to_owned));
    add("normEpsilon", differing(own.epsilon, known.epsilon).map(of_model));
    add("attentionBias", switch(|f| f.bias.qkv));
    add("mlpBias", switch(|f| f.bias.mlp));
    let cap = differing(own.logit_softcap, known.logit_softcap).flatten();
    add("logitSoftcap", cap.map(of_model));
    fields
}

/// The fields about positions that differ from the known ones.
fn positions(own: Positions, known: Positions) -> Fields {
    let mut fields = Fields::new();
    let (own, known) = match (own, known) {
        (Positions::Learned, Positions::Learned) => return fields,
        (Positions::Learned, Positions::Rotary(_)) => return vec![("positions", "learned".to_owned())],
        (Positions::Rotary(own), Positions::Rotary(known)) => (own, known),
        (Positions::Rotary(own), Positions::Learned) => {
            fields.push(("positions", "rotary".to_owned()));
            // What a job has that says no more of them.
            (own, Rotary::ORIGINAL)
        }
    };
    let theta = differing(own.theta, known.theta).map(of_model);
    fields.extend(theta.map(|theta| ("ropeTheta", theta)));
    let scaling = differing(own.scaling, known.scaling).map(rope_scaling);
    fields.extend(scaling.map(|scaling| ("ropeScaling", scaling)));
    fields
}

/// `spec.model.ropeScaling`.
fn rope_scaling(scaling: Option<Scaling>) -> String {
    let Some(scaling) = scaling else {
        return "{kind: none}".to_owned();
    };
    let usual = Scaling::llama3(scaling.factor.get());
    let mut text = format!("{{factor: {}", of_model(scaling.factor));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text += &format!(", {name}: {value}");
        }
    };
    let (low, high) = (scaling.low_turns, scaling.high_turns);
    add(
        "lowFrequencyFactor",
        differing(low, usual.low_turns).map(of_model),
    );
    add(
        "highFrequencyFactor",
        differing(high, usual.high_turns).map(of_model),
    );
    let length = differing(scaling.original_length, usual.original_length);
    add("originalSequenceLength", length.map(|tokens| tokens.to_string()));
    text + "}"
}

fn norm_name(norm: Norm) -> &'static str {
    match norm {
        Norm::LayerNorm => "layer",
        Norm::RmsNorm => "rms",
    }
}

fn mlp_name(mlp: Mlp) -> &'static str {
    match mlp {
        Mlp::Gelu => "gelu",
        Mlp::GeluErf => "geluErf",
        Mlp::SwiGlu => "swiglu",
        Mlp::Relu2 => "relu2",
    }
}

/// A value, if it differs from the known one.
fn differing<T: PartialEq>(own: T, known: T) -> Option<T> {
    (own != known).then_some(own)
}

fn of_model(number: Real) -> String {
    real(number.get())
}

/// The shortest text that is parsed as this number.
fn real(number: f64) -> String {
    let text = format!("{number:?}");
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

fn text(fields: &[(&'static str, String)]) -> String {
    let lines = fields
        .iter()
        .map(|(name, value)| format!("    {name}: {value}\n"));
    format!("spec:\n  model:\n{}", lines.collect::<String>())
}

/// Whether a job file with this part describes exactly this model.
fn says(part: &str, model: &Transformer) -> bool {
    let masking = match model.features.bidirectional {
        true => ", masking: {maskToken: 0}",
        false => "",
    };
    let training = format!("{{globalBatchSize: 1, steps: 1, optimizer: {{learningRate: 0.1}}{masking}}}");
    let job = parse_job(&format!(
        "apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: j}}\n{part}  data: {{path: d}}\n  training: {training}\n"
    ));
    job.is_ok_and(|job| job.model.transformer() == Some(model))
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_model::bert;

    /// The text's fields, in the format of the guide.
    fn said(model: &Transformer) -> String {
        let text = job_model(model).expect("a job file says it");
        let fields = text
            .strip_prefix("spec:\n  model:\n")
            .expect("its part of the spec");
        let fields: Vec<&str> = fields.lines().map(str::trim).collect();
        format!("{{{}}}", fields.join(", "))
    }

    fn preset(name: &str) -> Transformer {
        presets::preset(name).unwrap()
    }

    /// A Llama 3 8B with other rotary angles.
    fn turned(theta: f64, scaling: Option<Scaling>) -> Transformer {
        let mut model = preset("llama3-8b");
        model.features.positions = Positions::Rotary(Rotary {
            theta: Real::new(theta),
            scaling,
        });
        model
    }

    #[test]
    fn of_a_preset_its_name_is_enough() {
        for name in presets::usual_names() {
            assert_eq!(said(&preset(name)), format!("{{preset: {name}}}"));
        }
    }

    #[test]
    fn published_models_are_said_as_the_guide_has_them() {
        let newer = Transformer {
            sequence_length: 131_072,
            ..turned(500_000.0, Some(Scaling::llama3(8.0)))
        };
        assert_eq!(
            said(&newer),
            "{preset: llama3-8b, sequenceLength: 131072, ropeScaling: {factor: 8}}"
        );
        let mut older = Transformer {
            sequence_length: 4096,
            vocabulary_size: 32_000,
            ..turned(1e4, None)
        };
        older.features.kv_heads = Some(32);
        older.features.inner_size = Some(11_008);
        assert_eq!(
            said(&older),
            "{preset: llama3-8b, sequenceLength: 4096, vocabularySize: 32000, kvHeads: 32, innerSize: 11008, ropeTheta: 10000}"
        );
        let mut unscaled = preset("llama3.2-1b");
        unscaled.features.positions = turned(500_000.0, None).features.positions;
        assert_eq!(
            said(&unscaled),
            "{preset: llama3.2-1b, ropeScaling: {kind: none}}"
        );
    }

    #[test]
    fn every_feature_that_a_job_can_name_is_named() {
        let scaling = Scaling {
            low_turns: Real::new(2.5),
            high_turns: Real::new(5.0),
            original_length: 64,
            ..Scaling::llama3(32.0)
        };
        let mut llama = Transformer {
            tied_head: true,
            dropout: 0.1,
            ..turned(500_000.0, Some(scaling))
        };
        llama.features.head_size = Some(96);
        llama.features.qk_norm = true;
        llama.features.norm = Norm::LayerNorm;
        llama.features.epsilon = Real::new(1e-6);
        llama.features.bias.qkv = true;
        llama.features.bias.out = true;
        llama.features.bias.mlp = true;
        llama.features.sliding_window = Some(512);
        llama.features.logit_softcap = Some(Real::new(30.0));
        llama.features.mlp = Mlp::Relu2;
        assert_eq!(
            said(&llama),
            "{preset: llama3-8b, tiedHead: true, dropout: 0.1, headSize: 96, qkNorm: true, mlp: relu2, ropeScaling: {factor: 32, lowFrequencyFactor: 2.5, \
             highFrequencyFactor: 5, originalSequenceLength: 64}, slidingWindow: 512, norm: layer, normEpsilon: 1e-6, attentionBias: true, mlpBias: true, \
             logitSoftcap: 30}"
        );
    }

    #[test]
    fn a_gpt2_of_no_preset_is_said_by_its_sizes_alone() {
        let model = Transformer {
            layers: 2,
            hidden_size: 8,
            heads: 2,
            sequence_length: 16,
            vocabulary_size: 11,
            tied_head: false,
            ..gpt2::SMALL
        };
        assert_eq!(
            said(&model),
            "{layers: 2, hiddenSize: 8, heads: 2, sequenceLength: 16, vocabularySize: 11, tiedHead: false}"
        );
    }

    #[test]
    fn kinds_of_norm_and_positions_are_said_without_a_preset() {
        let sizes = "layers: 2, hiddenSize: 8, heads: 2, sequenceLength: 16, vocabularySize: 11";
        let with = |positions| {
            let mut model = Transformer {
                layers: 2,
                hidden_size: 8,
                heads: 2,
                sequence_length: 16,
                vocabulary_size: 11,
                ..gpt2::SMALL
            };
            model.features.norm = Norm::RmsNorm;
            model.features.qk_norm = true;
            model.features.positions = positions;
            said(&model)
        };
        assert_eq!(
            with(Positions::Learned),
            format!("{{{sizes}, qkNorm: true, norm: rms}}")
        );
        assert_eq!(
            with(Positions::Rotary(Rotary::ORIGINAL)),
            format!("{{{sizes}, qkNorm: true, positions: rotary, norm: rms}}")
        );
        let scaled = Rotary {
            theta: Real::new(5e5),
            scaling: Some(Scaling::llama3(8.0)),
        };
        assert_eq!(
            with(Positions::Rotary(scaled)),
            format!(
                "{{{sizes}, qkNorm: true, positions: rotary, ropeTheta: 500000, ropeScaling: {{factor: 8}}, norm: rms}}"
            )
        );
        let mut learned = preset("llama-tiny");
        learned.features.positions = Positions::Learned;
        assert_eq!(said(&learned), "{preset: llama-tiny, positions: learned}");
    }

    #[test]
    fn what_no_field_says_is_not_said() {
        let mut model = bert::BASE;
        model.features.token_types = Some(1);
        assert_eq!(job_model(&model), None);
        let mut model = preset("llama-tiny");
        model.features.bias.out = true;
        assert_eq!(job_model(&model), None);
    }
}
