//! A sequence of inputs for a state machine. Each has its kind, an argument, the length of the payload in two bytes, and the payload.

/// One input of the sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    /// Kind of the input.
    pub(crate) kind: u8,
    /// A worker, or a time.
    pub(crate) argument: u8,
    /// A message.
    pub(crate) payload: Vec<u8>,
}

/// Reads a sequence. Any bytes are valid: an input that is cut short ends early.
pub(crate) fn read(mut input: &[u8]) -> Vec<Item> {
    let mut items = Vec::new();
    while let [kind, argument, rest @ ..] = input {
        input = rest;
        let payload = super::take_part(&mut input).to_vec();
        items.push(Item {
            kind: *kind,
            argument: *argument,
            payload,
        });
    }
    items
}

pub(crate) fn write(items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    for Item {
        kind,
        argument,
        payload,
    } in items
    {
        // If the length does not fit, the rest is read as the next items, as with any other damage.
        let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        out.extend([*kind, *argument]);
        out.extend(length.to_le_bytes());
        out.extend(&payload[..usize::from(length)]);
    }
    out
}
