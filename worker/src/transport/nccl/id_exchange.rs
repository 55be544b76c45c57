//! How the ranks of a communicator find each other: two rounds around the circle of its ranks, over the generation's link. In the first
//! round each rank says whether it has NCCL. In the second the first rank says under which id they meet, or that they do not.

use super::super::{Link, LinkError, Packet, Tag};
use std::time::Instant;
use varuna_cuda::{NcclError, UniqueId};
use varuna_frames::COMMUNICATOR_ID_ELEMENTS;
use varuna_plan::WorkerId;

/// Bytes of an element.
const ELEMENT: usize = size_of::<f32>();

/// An answer as the elements of a packet: whether there is an id, and the bits of its bytes, which nobody computes with.
fn packet(id: Option<&UniqueId>) -> Packet {
    let bits = id.map_or(&[][..], |id| id.as_bytes()).as_chunks::<ELEMENT>().0;
    let answer = if id.is_some() { 1.0 } else { 0.0 };
    let elements = bits.iter().map(|b| f32::from_bits(u32::from_le_bytes(*b)));
    Packet::Float32([answer].into_iter().chain(elements).collect())
}

/// The id in a packet of [`packet`].
fn id_of(packet: &Packet) -> Option<UniqueId> {
    let Packet::Float32(elements) = packet else {
        return None;
    };
    let (answer, bits) = elements.split_first()?;
    let mut bytes = [0; UniqueId::BYTES];
    let places = bytes.as_chunks_mut::<ELEMENT>().0;
    if *answer != 1.0 || bits.len() != places.len() {
        return None;
    }
    for (place, element) in places.iter_mut().zip(bits) {
        *place = element.to_bits().to_le_bytes();
    }
    Some(UniqueId::of_bytes(bytes))
}

/// One communicator that is to be made.
pub(super) struct IdExchange<'a> {
    pub(super) link: &'a dyn Link,
    /// Which one, in the order of the plan.
    pub(super) communicator: u32,
    pub(super) ranks: &'a [WorkerId],
    /// This worker's position among them.
    pub(super) rank: usize,
    pub(super) deadline: Instant,
}

impl IdExchange<'_> {
    fn send_to_next(&self, round: u32, packet: Packet) -> Result<(), LinkError> {
        let to = self.ranks[(self.rank + 1) % self.ranks.len()];
        self.link.send(to, self.tag(round), packet, self.deadline)
    }

    fn receive_from_previous(&self, round: u32) -> Result<Packet, LinkError> {
        let count = self.ranks.len();
        let from = self.ranks[(self.rank + count - 1) % count];
        self.link.recv(from, self.tag(round), self.deadline)
    }

    fn tag(&self, round: u32) -> Tag {
        Tag::CommunicatorId {
            communicator: self.communicator,
            round,
        }
    }

    /// The id of the communicator, the same on all ranks: none if one of them has no NCCL.
    pub(super) fn agree(
        &self,
        has: bool,
        draw: impl FnOnce() -> Result<UniqueId, NcclError>,
    ) -> Result<Option<UniqueId>, LinkError> {
        debug_assert_eq!(1 + UniqueId::BYTES / ELEMENT, COMMUNICATOR_ID_ELEMENTS as usize);
        let says = |all: bool| Packet::Float32(vec![if all { 1.0 } else { 0.0 }]);
        let agrees = |packet: &Packet| *packet == says(true);
        if self.rank == 0 {
            self.send_to_next(0, says(has))?;
            let all = agrees(&self.receive_from_previous(0)?);
            // A rank that cannot create an id says that it has no NCCL.
            let id = all.then(|| draw().ok()).flatten();
            self.send_to_next(1, packet(id.as_ref()))?;
            return Ok(id);
        }
        let so_far = agrees(&self.receive_from_previous(0)?);
        self.send_to_next(0, says(so_far && has))?;
        let answer = self.receive_from_previous(1)?;
        let id = id_of(&answer);
        if self.rank + 1 < self.ranks.len() {
            self.send_to_next(1, answer)?;
        }
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::local::LocalMesh;
    use super::*;
    use std::time::Duration;

    /// The ids on which this many ranks agree, if these of them have NCCL.
    fn exchange_ids(has: &[bool]) -> Vec<Option<UniqueId>> {
        let ranks: Vec<WorkerId> = (0..has.len() as u64).map(|i| WorkerId(7 * i + 1)).collect();
        let mesh = LocalMesh::new(&ranks);
        let threads = has.iter().enumerate().map(|(rank, has)| {
            let (link, ranks, has) = (mesh.link(ranks[rank]), ranks.clone(), *has);
            std::thread::spawn(move || {
                let id_exchange = IdExchange {
                    link: &*link,
                    communicator: 3,
                    ranks: &ranks,
                    rank,
                    deadline: Instant::now() + Duration::from_secs(20),
                };
                // The bytes include some that are not valid numbers.
                let draw = || Ok(UniqueId::of_bytes(std::array::from_fn(|i| 255 - i as u8)));
                id_exchange.agree(has, draw).unwrap()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    }

    #[test]
    fn all_learn_the_same_id_or_that_one_of_them_has_no_nccl() {
        for count in 2..5 {
            let id = UniqueId::of_bytes(std::array::from_fn(|i| 255 - i as u8));
            assert_eq!(exchange_ids(&vec![true; count]), vec![Some(id); count]);
            for without in 0..count {
                let has: Vec<bool> = (0..count).map(|rank| rank != without).collect();
                assert_eq!(exchange_ids(&has), vec![None; count], "{without} of {count}");
            }
        }
    }
}
