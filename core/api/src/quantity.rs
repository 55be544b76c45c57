//! Amounts of memory in the notation of Kubernetes: `300Mi`, `1.5Gi`, `2G`, `1048576`.

use serde_json::Value;

/// The allowed forms of a quantity, for error messages.
pub const ALLOWED: &str = "an amount of memory above 0, such as 300Mi, 1.5Gi, 2G or a number of bytes";

/// Bytes of a unit suffix: binary with `i`, decimal without.
fn unit(suffix: &str) -> Option<f64> {
    const KIBI: f64 = 1024.0;
    Some(match suffix {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => KIBI,
        "Mi" => KIBI * KIBI,
        "Gi" => KIBI * KIBI * KIBI,
        "Ti" => KIBI * KIBI * KIBI * KIBI,
        _ => return None,
    })
}

/// Bytes of a quantity (a string or a bare number), rounded down. None if it is not a quantity, is less than one byte or does not fit into
/// 2^53.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to lie in 1..2^53"
)]
pub fn bytes(value: &Value) -> Option<u64> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let bytes = number.parse::<f64>().ok()? * unit(suffix)?;
    (1.0..9_007_199_254_740_992.0)
        .contains(&bytes)
        .then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::bytes;
    use serde_json::json;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, want) in [
            (json!("300Mi"), Some(300 << 20)),
            (json!("1.5Gi"), Some(3 << 29)),
            (json!("2G"), Some(2_000_000_000)),
            (json!("4k"), Some(4000)),
            (json!(1_048_576), Some(1 << 20)),
            (json!("0"), None),
            (json!("-1Mi"), None),
            (json!("300 Mi"), None),
            (json!("300MB"), None),
            (json!("Mi"), None),
            (json!("1e30"), None),
            (json!("99999999Ti"), None),
            (json!(true), None),
        ] {
            assert_eq!(bytes(&text), want, "{text}");
        }
    }
}
