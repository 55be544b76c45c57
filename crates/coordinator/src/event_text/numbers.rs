//! Numbers in sentences, with their units. Pure.

/// A factor with two significant digits.
pub(super) fn significant(factor: f64) -> String {
    if factor >= 10.0 {
        format!("{factor:.0}")
    } else if factor >= 1.0 {
        format!("{factor:.1}")
    } else if factor >= 0.1 {
        format!("{factor:.2}")
    } else {
        format!("{factor:.1e}")
    }
}

/// `1 step`, `2 steps`.
pub(super) fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A time with a unit that fits it: `0.8 s`, `154 ms`, `2.5 ms`.
pub(super) fn time(ms: f64) -> String {
    if ms >= 500.0 {
        format!("{:.1} s", ms / 1e3)
    } else if ms >= 10.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{ms:.1} ms")
    }
}
