//! The features of a model's segments.

use crate::real::Real;
use crate::rotary::Rotary;
use serde::{Deserialize, Serialize};

/// The features of a model's segments. In documents every feature that equals GPT-2's is omitted, because hashes of jobs and manifests of
/// checkpoints were written before there were others. Unknown features are refused, since ignoring one would train a different model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Features {
    /// How tokens learn of their position.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub positions: Positions,
    /// Normalisation.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub norm: Norm,
    /// Added to the variance, or the mean square, in a normalisation.
    #[serde(skip_serializing_if = "is_gpt2s_epsilon")]
    pub epsilon: Real,
    /// Number of heads with keys and values of their own, a divisor of the number of heads; none = all of them.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub kv_heads: Option<u32>,
    /// Width of a head; none = the model's width divided by the number of heads. Even if positions are rotary.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub head_size: Option<u32>,
    /// Each head's queries and keys are normalised to mean square 1 and have a weight (Henry et al. 2020).
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub qk_norm: bool,
    /// Number of tokens that a token sees, itself included; none = all before it.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub sliding_window: Option<u32>,
    /// Whether tokens see all tokens of their sample, including later ones (Devlin et al. 2019): the model learns to fill in masked tokens,
    /// not to continue a text.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub bidirectional: bool,
    /// Number of token types. Each has a learned vector that is added to the token's (Devlin et al. 2019). All tokens are of the first
    /// type: the vectors exist for published weights.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub token_types: Option<u32>,
    /// Whether the output of the embedding is normalised.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub embedding_norm: bool,
    /// Attention and MLP are normalised after their residual additions, as in the first transformers (Vaswani et al. 2017), not before.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub post_norm: bool,
    /// Before its norm the head has a linear layer with the MLP's activation, and its logits have a bias (Devlin et al. 2019).
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub masked_head: bool,
    /// MLP.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub mlp: Mlp,
    /// Inner width of the MLP; none = what is usual for the kind of MLP.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub inner_size: Option<u32>,
    /// Which linear layers have a bias.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub bias: Biases,
    /// Soft cap on the absolute value of logits: `c tanh(x / c)` (Bello et al. 2016); none = no cap.
    #[serde(skip_serializing_if = "is_gpt2s")]
    pub logit_softcap: Option<Real>,
}

/// How tokens learn of their position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Positions {
    /// A learned vector for each position, added to the token's.
    #[default]
    Learned,
    /// Queries and keys are rotated in each attention; the embedding has no positions.
    Rotary(Rotary),
}

/// Kind of normalisation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Norm {
    /// Mean 0 and variance 1, then weight and bias (Ba et al. 2016).
    #[default]
    LayerNorm,
    /// Mean square 1, then a weight (Zhang and Sennrich 2019).
    RmsNorm,
}

/// Kind of MLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mlp {
    /// Up, GELU (tanh form), down again.
    #[default]
    Gelu,
    /// The same with the exact GELU, by the error function.
    GeluErf,
    /// Up twice, SiLU of one times the other, down again (Shazeer 2020).
    SwiGlu,
    /// Up, the square of the positive part, down again (So et al. 2021).
    Relu2,
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Biases {
    /// Whether the linear layers of queries, keys and values have them.
    pub qkv: bool,
    /// Whether the linear layer after attention has one.
    pub out: bool,
    /// Whether the linear layers of the MLP have them.
    pub mlp: bool,
}

impl Biases {
    /// All linear layers have biases.
    pub const ALL: Biases = Biases {
        qkv: true,
        out: true,
        mlp: true,
    };
    /// No linear layer has a bias.
    pub const NONE: Biases = Biases {
        qkv: false,
        out: false,
        mlp: false,
    };
}

impl Default for Biases {
    fn default() -> Self {
        Biases::ALL
    }
}

impl Features {
    /// GPT-2's (Radford et al. 2019).
    pub const GPT2: Features = Features {
        positions: Positions::Learned,
        norm: Norm::LayerNorm,
        epsilon: Real::new(1e-5),
        kv_heads: None,
        head_size: None,
        qk_norm: false,
        sliding_window: None,
        bidirectional: false,
        token_types: None,
        embedding_norm: false,
        post_norm: false,
        masked_head: false,
        mlp: Mlp::Gelu,
        inner_size: None,
        bias: Biases::ALL,
        logit_softcap: None,
    };

    /// Whether they are GPT-2's, which are omitted in documents.
    pub(crate) fn are_gpt2s(&self) -> bool {
        *self == Features::GPT2
    }
}

impl Default for Features {
    fn default() -> Self {
        Features::GPT2
    }
}

/// The default of each kind of feature is GPT-2's.
fn is_gpt2s<T: Default + PartialEq>(feature: &T) -> bool {
    *feature == T::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_gpt2s_epsilon(epsilon: &Real) -> bool {
    *epsilon == Features::GPT2.epsilon
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rotary::Scaling;
    use crate::{Transformer, bert, gpt2, llama3, qwen3};

    #[test]
    fn features_are_written_only_where_they_are_not_gpt2s() {
        let text = |features| {
            let model = Transformer {
                features,
                ..gpt2::SMALL
            };
            let text = serde_json::to_string(&model).unwrap();
            assert_eq!(serde_json::from_str::<Transformer>(&text).unwrap(), model);
            text.split_once(r#","features":"#)
                .map(|(_, rest)| rest.strip_suffix('}').unwrap().to_owned())
        };
        assert_eq!(text(Features::GPT2), None);
        let with = |change: fn(&mut Features)| {
            let mut features = Features::GPT2;
            change(&mut features);
            text(features).unwrap()
        };
        assert_eq!(with(|f| f.norm = Norm::RmsNorm), r#"{"norm":"rmsNorm"}"#);
        assert_eq!(with(|f| f.epsilon = Real::new(1e-6)), r#"{"epsilon":1e-6}"#);
        assert_eq!(with(|f| f.kv_heads = Some(4)), r#"{"kvHeads":4}"#);
        assert_eq!(with(|f| f.head_size = Some(128)), r#"{"headSize":128}"#);
        assert_eq!(with(|f| f.qk_norm = true), r#"{"qkNorm":true}"#);
        assert_eq!(with(|f| f.sliding_window = Some(9)), r#"{"slidingWindow":9}"#);
        assert_eq!(with(|f| f.bidirectional = true), r#"{"bidirectional":true}"#);
        assert_eq!(with(|f| f.token_types = Some(2)), r#"{"tokenTypes":2}"#);
        assert_eq!(with(|f| f.embedding_norm = true), r#"{"embeddingNorm":true}"#);
        assert_eq!(with(|f| f.post_norm = true), r#"{"postNorm":true}"#);
        assert_eq!(with(|f| f.masked_head = true), r#"{"maskedHead":true}"#);
        assert_eq!(with(|f| f.mlp = Mlp::GeluErf), r#"{"mlp":"geluErf"}"#);
        assert_eq!(with(|f| f.mlp = Mlp::Relu2), r#"{"mlp":"relu2"}"#);
        assert_eq!(with(|f| f.inner_size = Some(96)), r#"{"innerSize":96}"#);
        assert_eq!(
            with(|f| f.bias.out = false),
            r#"{"bias":{"qkv":true,"out":false,"mlp":true}}"#
        );
        assert_eq!(
            with(|f| f.logit_softcap = Some(Real::new(30.0))),
            r#"{"logitSoftcap":30.0}"#
        );
        assert_eq!(
            with(|f| {
                f.positions = Positions::Rotary(Rotary {
                    theta: Real::new(1e4),
                    scaling: None,
                });
            }),
            r#"{"positions":{"rotary":{"theta":10000.0}}}"#
        );
    }

    #[test]
    fn every_familys_features_survive_a_document() {
        for features in [
            llama3::SMALL.features,
            llama3::LARGE.features,
            qwen3::SMALL.features,
            bert::BASE.features,
        ] {
            let text = serde_json::to_string(&features).unwrap();
            assert_eq!(
                serde_json::from_str::<Features>(&text).unwrap(),
                features,
                "{text}"
            );
        }
        let scaled = |f: Features| {
            matches!(
                f.positions,
                Positions::Rotary(Rotary {
                    scaling: Some(Scaling { .. }),
                    ..
                })
            )
        };
        assert!(scaled(llama3::SMALL.features) && !scaled(llama3::LARGE.features));
    }

    #[test]
    fn a_feature_that_this_build_does_not_know_is_refused() {
        for text in [
            r#"{"experts":8}"#,
            r#"{"norm":"crmsNorm"}"#,
            r#"{"positions":{"rotary":{"theta":1e4,"shift":1}}}"#,
            r#"{"bias":{"qkv":true,"out":true,"mlp":true,"head":true}}"#,
        ] {
            assert!(serde_json::from_str::<Features>(text).is_err(), "{text}");
        }
    }
}
