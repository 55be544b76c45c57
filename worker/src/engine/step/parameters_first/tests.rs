use super::*;
use std::collections::BTreeMap;

fn to(receivers: &[u64]) -> Way {
    Way::To(receivers.iter().map(|w| WorkerId(*w)).collect())
}

fn from(sender: u64) -> Way {
    Way::From(WorkerId(sender))
}

/// The pieces of each worker: elements of the units, and by worker which way each goes.
fn of_workers(elements: &[usize], ways: &[Vec<Option<Way>>]) -> Vec<Vec<Piece>> {
    let of = |ways: &Vec<Option<Way>>| {
        let units = (0..).map(Unit).zip(elements).zip(ways);
        let units: Vec<_> = units.map(|((unit, n), way)| (unit, *n, way.clone())).collect();
        pieces(&units)
    };
    ways.iter().map(of).collect()
}

#[test]
fn receivers_of_a_worker_get_theirs_in_turn() {
    let elements = [2 * PIECE + 3, 0, PIECE, PIECE + 1];
    let way = vec![Some(to(&[2])), Some(to(&[2])), None, Some(to(&[3]))];
    let found = of_workers(&elements, &[way]).remove(0);
    let places: Vec<_> = found.iter().map(|p| (p.place, p.unit.0, p.number)).collect();
    assert_eq!(places, [(0, 0, 0), (2, 3, 0), (3, 0, 1), (4, 3, 1), (5, 0, 2)]);
    let lengths: Vec<_> = found.iter().map(|p| p.elements.len()).collect();
    assert_eq!(lengths, [PIECE, PIECE, PIECE, 1, 3]);
    assert_eq!(found[4].elements, 2 * PIECE..2 * PIECE + 3);
}

/// Runs the workers' pieces with room for this many pieces at each receiver from each sender. True if all end.
fn all_end(workers: &[Vec<Piece>], room: usize) -> bool {
    // What each worker does one after the other.
    let mut todo: Vec<VecDeque<(Piece, bool)>> = Vec::new();
    for pieces in workers {
        let (mut list, mut awaited) = (VecDeque::new(), VecDeque::<Piece>::new());
        for piece in pieces {
            while let Some(due) = awaited.pop_front_if(|first| first.place + AHEAD <= piece.place) {
                list.push_back((due, false));
            }
            match piece.way {
                Way::To(_) => list.push_back((piece.clone(), true)),
                Way::From(_) => awaited.push_back(piece.clone()),
            }
        }
        list.extend(awaited.into_iter().map(|piece| (piece, false)));
        todo.push(list);
    }
    let mut waiting: BTreeMap<(usize, usize), Vec<(u32, u32)>> = BTreeMap::new();
    loop {
        let mut has_moved = false;
        for (me, list) in todo.iter_mut().enumerate() {
            let Some((piece, is_sent)) = list.front().cloned() else {
                continue;
            };
            let name = (piece.unit.0, piece.number);
            let done = match &piece.way {
                Way::To(receivers) => {
                    assert!(is_sent);
                    let ways: Vec<_> = receivers.iter().map(|w| (me, w.0 as usize)).collect();
                    let has_room = ways
                        .iter()
                        .all(|way| waiting.entry(*way).or_default().len() < room);
                    if has_room {
                        ways.iter()
                            .for_each(|way| waiting.entry(*way).or_default().push(name));
                    }
                    has_room
                }
                Way::From(sender) => {
                    let inbox = waiting.entry((sender.0 as usize, me)).or_default();
                    let found = inbox.iter().position(|other| *other == name);
                    found.map(|at| inbox.remove(at)).is_some()
                }
            };
            if done {
                list.pop_front();
                has_moved = true;
            }
        }
        if todo.iter().all(VecDeque::is_empty) {
            return true;
        }
        if !has_moved {
            return false;
        }
    }
}

#[test]
fn workers_that_send_to_each_other_never_wait_in_a_circle() {
    // Many large units, of which each of two workers sends every other one, and a third takes all.
    let elements = vec![20 * PIECE; 200];
    let ways = |me: usize| {
        let way = move |unit: usize| match (me, unit % 2) {
            (0, 0) => to(&[1, 2]),
            (1, 1) => to(&[0, 2]),
            (_, 0) => from(0),
            _ => from(1),
        };
        (0..200).map(|unit| Some(way(unit))).collect()
    };
    let workers = of_workers(&elements, &[ways(0), ways(1), ways(2)]);
    assert!(all_end(&workers, AHEAD + 1));
    assert!(!all_end(&workers, 1), "the model of the queues can stop");
}
