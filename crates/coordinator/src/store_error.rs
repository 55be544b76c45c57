//! Errors of object stores, shortened for people.

/// An object store's error without the parts that differ between requests (how long it took, the request's number), and without the markup
/// of an S3 answer. So a repeated error has the same text and is logged once.
pub(crate) fn summarize(error: &str) -> String {
    let head = error.split("<?xml").next().unwrap_or(error);
    let first_line = head.lines().next().unwrap_or("");
    let mut summary = first_line.trim_end_matches([':', ' ']).to_owned();
    if let Some((before, after)) = summary.split_once(" in ")
        && let Some((took, rest)) = after.split_once(" - ")
        && took.starts_with(|c: char| c.is_ascii_digit())
    {
        summary = format!("{before}: {rest}");
    }
    let tag = |name: &str| {
        let (_, after) = error.split_once(&format!("<{name}>"))?;
        Some(after.split_once(&format!("</{name}>"))?.0)
    };
    match (tag("Code"), tag("Message")) {
        (Some(code), Some(message)) => format!("{summary} ({code}: {message})"),
        (Some(code), None) => format!("{summary} ({code})"),
        _ => summary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stores_error_reads_the_same_each_time() {
        let error = |took: &str, request: &str| {
            format!(
                "checkpoint store: Generic S3 error: Error performing list request: Error performing GET http://h:1/b?list-type=2 in {took} \
                 - Server returned non-2xx status code: 404 Not Found: <?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchBucket\
                 </Code><Message>The specified bucket does not exist</Message><RequestId>{request}</RequestId></Error>"
            )
        };
        let summary = summarize(&error("1.4ms", "a"));
        assert_eq!(summary, summarize(&error("12.5ms", "b")));
        assert!(
            summary.ends_with("b?list-type=2: Server returned non-2xx status code: 404 Not Found (NoSuchBucket: The specified bucket does not exist)"),
            "{summary}"
        );
        let other = "no space left in 3 folders";
        assert_eq!(summarize(other), other);
    }
}
