//! Checks that a pattern means the same to the library's engine (fancy-regex) and to the fast one (regex-automata). Only syntax is accepted
//! that both are known to read alike. Other syntax is refused by one of them, or read differently: `a++` gives nothing back once it has
//! matched, or repeats `a+`.

/// Whether both engines read this pattern alike, if they accept it at all.
pub(super) fn is_common(pattern: &str) -> bool {
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let behind = &rest[first.len_utf8()..];
        let next = match first {
            '\\' => after_escape(behind),
            '[' => after_class(behind),
            '(' => after_opening(behind),
            '?' | '*' | '+' | '{' => after_quantifier(rest),
            // The beginning or end of a text: no pattern of words needs it, and its meaning depends on flags.
            '^' | '$' => None,
            _ => Some(behind),
        };
        let Some(next) = next else { return false };
        rest = next;
    }
    true
}

/// The rest after an escape of a character class, of a line break or tab, or of a character that then stands for itself. Other escapes,
/// such as `\h` and `\K`, are supported by only one engine, or differ in meaning.
fn after_escape(rest: &str) -> Option<&str> {
    let first = rest.chars().next()?;
    let behind = &rest[first.len_utf8()..];
    match first {
        'p' | 'P' => {
            let (_, behind) = behind.strip_prefix('{')?.split_once('}')?;
            Some(behind)
        }
        's' | 'S' | 'd' | 'D' | 'w' | 'W' | 'r' | 'n' | 't' => Some(behind),
        '<' | '>' => None,
        sign if sign.is_ascii_punctuation() => Some(behind),
        _ => None,
    }
}

/// The rest after a character class. A nested class may end at different positions for the two engines.
fn after_class(rest: &str) -> Option<&str> {
    let rest = rest.strip_prefix('^').unwrap_or(rest);
    // A closing bracket at the beginning is one of the characters.
    let mut rest = rest.strip_prefix(']').unwrap_or(rest);
    loop {
        let first = rest.chars().next()?;
        let behind = &rest[first.len_utf8()..];
        rest = match first {
            ']' => return Some(behind),
            '[' => return None,
            '\\' => after_escape(behind)?,
            _ => behind,
        };
    }
}

/// The rest after the beginning of a group: of a plain one, of `(?:` or of `(?i:`. Look-around and atomic groups are supported by only one
/// engine, and flags without a group of their own end at different positions.
fn after_opening(rest: &str) -> Option<&str> {
    match rest.strip_prefix('?') {
        None => Some(rest),
        Some(flags) => flags.strip_prefix(':').or_else(|| flags.strip_prefix("i:")),
    }
}

/// The rest after a quantifier, which may be lazy. Followed by another quantifier, it is possessive for one engine and repeated for the
/// other.
fn after_quantifier(rest: &str) -> Option<&str> {
    let behind = match rest.strip_prefix('{') {
        None => rest.get(1..)?,
        Some(counts) => {
            let (counts, behind) = counts.split_once('}')?;
            let (least, most) = counts.split_once(',').unwrap_or((counts, counts));
            let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if !is_number(least) || !(most.is_empty() || is_number(most)) {
                return None;
            }
            behind
        }
    };
    let behind = behind.strip_prefix('?').unwrap_or(behind);
    (!behind.starts_with(['?', '*', '+', '{'])).then_some(behind)
}

#[cfg(test)]
mod tests {
    use super::is_common;

    #[test]
    fn what_both_engines_read_alike_is_told_from_what_they_do_not() {
        for common in [
            "",
            r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+",
            r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+",
            r"a+?|b*?|c??|d{2}?|e{2,}|f{2,3}",
            r"(ab)+|(?:c|d)*",
            r"\+\+|[+]+|[++]|[]+]+|[^]+]+|\\+",
            r"[+*?{}]+x",
            "}]\u{4e2d}+",
        ] {
            assert!(is_common(common), "{common}");
        }
        for other in [
            // Possessive in one engine, and repeated twice in the other.
            r"[^\r\n\p{L}\p{N}]?+\p{L}+",
            r"[^\s\p{L}\p{N}]++",
            r"a*+",
            r"a{1,3}+",
            r"a??+",
            r"a+?+",
            r"\++ +\p{L}++",
            r"a{2}{3}",
            r"a**",
            // Braces that are no count for one of the engines.
            r"a{,3}",
            r"a{}",
            r"a{ 2 }",
            r"a{b",
            // Groups and escapes that only one engine knows, or that the engines interpret differently.
            r"(?>a)",
            r"(?=a)",
            r"(?!a)",
            r"(?<=a)",
            r"(?<!a)",
            r"(?<name>a)",
            r"(?i)a",
            r"(?x: a )",
            r"(a)\1",
            r"\Ga",
            r"a\K",
            r"\ha",
            r"a\Z",
            r"a\z",
            r"\Aa",
            r"\ba",
            r"\<a",
            r"\x41",
            r"\u0041",
            r"\R",
            r"\X",
            r"^a",
            r"a$",
            // Nested classes, and syntax that is not closed.
            r"[[a]]",
            r"[a&&[^b]]",
            r"[[:alpha:]]",
            r"[a",
            r"\p{L",
            r"a\",
        ] {
            assert!(!is_common(other), "{other}");
        }
    }
}
