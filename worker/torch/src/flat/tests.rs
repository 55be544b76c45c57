use super::*;
use std::time::Duration;

fn all(share: &Share) -> Vec<f32> {
    let mut values = Vec::new();
    share.append(0..share.len(), &mut values).unwrap();
    values
}

#[test]
fn shares_keep_leases_out_and_the_other_way_round() {
    let buffer = FlatBuffer::zeros(4, Device::Cpu, Streams::HOST).unwrap();
    let (one, two) = (buffer.share().unwrap(), buffer.share().unwrap());
    assert!(buffer.is_shared() && !buffer.is_leased() && buffer.lease().is_err());
    drop(one);
    assert!(buffer.lease().is_err(), "a share is still out");
    assert_eq!(all(&two), [0.0; 4]);
    drop(two);
    let lease = buffer.lease().unwrap();
    assert!(buffer.is_leased() && !buffer.is_shared() && buffer.share().is_err());
    drop(lease);
    assert!(buffer.share().is_ok());
}

#[test]
fn writer_waits_for_the_last_share_until_its_deadline() {
    let buffer = FlatBuffer::zeros(4, Device::Cpu, Streams::HOST).unwrap();
    let after = |time| Instant::now() + time;
    assert!(buffer.wait_for_shares(Instant::now()).is_ok(), "nobody reads");
    let (one, two) = (buffer.share().unwrap(), buffer.share().unwrap());
    let soon = Duration::from_millis(5);
    assert_eq!(buffer.wait_for_shares(after(soon)), Err(LeaseError::StillRead));
    let reader = std::thread::spawn(move || drop((one, two)));
    assert!(buffer.wait_for_shares(after(Duration::from_secs(60))).is_ok());
    assert!(!buffer.is_shared());
    reader.join().unwrap();
}

#[test]
fn tensors_and_leases_see_the_same_memory_in_turn() {
    let buffer = FlatBuffer::zeros(20, Device::Cpu, Streams::HOST).unwrap();
    let mut whole = buffer.tensor().unwrap();
    let _ = whole.fill_(1.0);
    let mut lease = buffer.lease().unwrap();
    assert!(buffer.lease().is_err(), "one lease at a time");
    let elsewhere = std::thread::spawn(move || {
        lease.set(3, &[7.0]);
        lease
    });
    let lease = elsewhere.join().unwrap();
    assert_eq!(lease.copy(0..20).iter().sum::<f32>(), 26.0);
    drop(lease);
    assert!(buffer.lease().is_ok());
    let view = whole.narrow(0, 3, 1);
    drop((buffer, whole));
    assert_eq!(
        Vec::<f32>::try_from(view).unwrap(),
        [7.0],
        "a view keeps the memory alive"
    );
}

#[test]
fn separate_memory_is_copied_for_readers() {
    let buffer = FlatBuffer::zeros(3, Device::CpuSeparateMemory, Streams::HOST).unwrap();
    let mut tensor = buffer.tensor().unwrap();
    let seen = || Vec::<f32>::try_from(buffer.tensor().unwrap()).unwrap();
    let _ = tensor.fill_(1.0);
    let mut lease = buffer.lease().unwrap();
    assert_eq!(lease.copy(0..3), [1.0; 3]);
    lease.add(1, &[4.0]);
    assert_eq!(seen(), [1.0; 3], "the device has memory of its own");
    drop(lease);
    buffer.set(&[1.0, 5.0]).unwrap();
    assert_eq!(seen(), [1.0, 5.0, 1.0], "the rest stays");
    let share = buffer.share().unwrap();
    assert_eq!(all(&share), [1.0, 5.0, 1.0]);
    assert_eq!(buffer.set(&[2.0]), Err(LeaseError::Taken), "somebody reads it");
    drop(share);
    let why = buffer.set(&[2.0; 4]).unwrap_err().to_string();
    assert_eq!(why, "libtorch: 4 elements for a buffer of 3");
    let _ = tensor.fill_(2.0);
    assert_eq!(buffer.copy(1..3), Ok(vec![2.0; 2]));
}

#[test]
fn separate_memory_uses_no_host_memory_before_a_lease() {
    let buffer = FlatBuffer::zeros(3, Device::CpuSeparateMemory, Streams::HOST).unwrap();
    buffer.set(&[1.0, 2.0, 3.0]).unwrap();
    assert_eq!(all(&buffer.share().unwrap()), [1.0, 2.0, 3.0]);
    let (squares, [last]) = buffer.sum_of_squares::<1>(0..2).unwrap();
    assert_eq!((squares, last), (5.0, 3.0));
    drop(buffer.lease_unread().unwrap());
    assert!(!buffer.memory.is_taken(), "weights and moments never need it");
    assert_eq!(buffer.lease().unwrap().copy(0..3), [1.0, 2.0, 3.0]);
    assert!(buffer.memory.is_taken());
    let on_host = FlatBuffer::zeros(3, Device::Cpu, Streams::HOST).unwrap();
    assert_eq!(on_host.lease_unread().unwrap().copy(0..3), [0.0; 3]);
}

#[test]
fn memory_is_aligned_for_vector_instructions() {
    for len in [0, 1, 16, 17] {
        let buffer = FlatBuffer::zeros(len, Device::Cpu, Streams::HOST).unwrap();
        assert_eq!(buffer.len(), len);
        assert_eq!(buffer.memory.start().as_ptr() as usize % 64, 0);
    }
}

#[test]
fn values_of_the_host_are_taken_over_in_their_memory() {
    let values = vec![1.0, 2.0, 3.0];
    let before = values.as_ptr();
    let buffer = FlatBuffer::of_host(values);
    assert_eq!(buffer.memory.start().as_ptr().cast_const(), before);
    let tensor = buffer.tensor().unwrap();
    drop(buffer);
    // The tensor keeps the memory alive.
    let _ = tensor.shallow_clone().g_add_scalar_(1.0);
    assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), [2.0, 3.0, 4.0]);
    assert!(FlatBuffer::of_host(Vec::new()).is_empty());
}

#[test]
fn parts_are_lent_one_by_one_in_the_memory_of_the_whole() {
    for device in [Device::Cpu, Device::CpuSeparateMemory] {
        let mut whole = PartedBuffer::zeros(10, device, Streams::HOST).unwrap();
        let (one, two) = (whole.part(2..5).unwrap(), whole.part(5..9).unwrap());
        let (one, two) = (one.unwrap(), two.unwrap());
        one.set(&[1.0, 2.0, 3.0]).unwrap();
        let _ = whole.tensor().unwrap().narrow(0, 5, 1).fill_(4.0);
        let seen = Vec::<f32>::try_from(whole.tensor().unwrap()).unwrap();
        assert_eq!(seen, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
        let share = one.share().unwrap();
        assert!(one.is_shared() && !two.is_shared());
        two.set(&[5.0; 4]).unwrap();
        assert_eq!(two.copy(1..4), Ok(vec![5.0; 3]));
        assert!(one.is_part() && whole.has(&one) && whole.has(&two.handle()));
        // The whole is gone; who has a part does not notice.
        drop((whole, one));
        assert_eq!(all(&share), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn no_element_is_in_two_parts_and_a_reader_keeps_its_own() {
    for device in [Device::Cpu, Device::CpuSeparateMemory] {
        let mut whole = PartedBuffer::zeros(10, device, Streams::HOST).unwrap();
        let one = whole.part(2..5).unwrap().unwrap();
        for overlapping in [0..3, 4..6, 3..4, 0..10] {
            assert!(whole.part(overlapping).unwrap().is_none());
        }
        let own = FlatBuffer::zeros(3, device, Streams::HOST).unwrap();
        assert!(!own.is_part() && !whole.has(&own));
        assert_eq!(whole.parts(), 1);
        let share = one.share().unwrap();
        drop(one);
        assert_eq!(whole.parts(), 1, "somebody reads it");
        assert!(whole.part(2..3).unwrap().is_none());
        drop(share);
        assert_eq!(whole.parts(), 0);
        assert!(whole.part(0..10).unwrap().is_some());
        let beyond = whole.part(3..11).err().unwrap().to_string();
        assert_eq!(beyond, "libtorch: elements 3..11 of a buffer of 10");
    }
}

#[test]
fn a_part_of_separate_memory_takes_host_memory_for_itself() {
    let mut whole = PartedBuffer::zeros(1000, Device::CpuSeparateMemory, Streams::HOST).unwrap();
    let part = whole.part(10..13).unwrap().unwrap();
    part.set(&[1.0, 2.0, 3.0]).unwrap();
    assert_eq!(part.lease().unwrap().copy(0..3), [1.0, 2.0, 3.0]);
    assert!(part.memory.is_taken() && !whole.is_taken());
    // A copy on the device is read instead of the part.
    let copy = part.share_copy().unwrap();
    drop(part);
    assert_eq!(whole.parts(), 0);
    assert_eq!(all(&copy), [1.0, 2.0, 3.0]);
}
