//! Inputs of a state machine, one after another: for each its kind, an argument, the length of the rest in two bytes, the rest.

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    /// What it is.
    pub(crate) kind: u8,
    /// A worker, or a time.
    pub(crate) argument: u8,
    /// A message.
    pub(crate) payload: Vec<u8>,
}

/// Any bytes are a sequence: what is cut short is taken as it is.
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
        // What follows is then taken for the next items, as would be with any other damage.
        let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        out.extend([*kind, *argument]);
        out.extend(length.to_le_bytes());
        out.extend(&payload[..usize::from(length)]);
    }
    out
}
