use super::*;
use std::sync::atomic::AtomicU32;
use tch::Device;

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

#[test]
fn memory_that_no_tensor_is_made_over_is_released_once() {
    static RELEASED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn release(_: *mut c_void) {
        RELEASED.fetch_add(1, Ordering::SeqCst);
    }
    let null = std::ptr::null_mut();
    let float = scalar_type(Kind::Float).unwrap();
    let mut memory = [1.0f32; 2];
    let data: *mut c_void = memory.as_mut_ptr().cast();
    assert!(from_memory(data, float, &[-2], release, null).is_err());
    assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
    let tensor = from_memory(data, float, &[2], release, null).unwrap();
    assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
    drop(tensor);
    assert_eq!(RELEASED.load(Ordering::SeqCst), 2);
}

#[test]
fn where_no_tensor_has_been_on_a_gpu_no_memory_of_one_is_kept() {
    assert_eq!(release_cached(), Ok(()));
}

#[test]
fn a_gradient_of_another_shape_or_kind_is_refused() {
    let weights = Tensor::ones([2, 3], CPU);
    assert!(set_grad(&weights, &Tensor::zeros([2, 3], CPU)).is_ok());
    let half = weights.to_kind(Kind::BFloat16);
    assert!(set_grad(&half, &Tensor::zeros([2, 3], CPU)).is_ok());
    for (size, kind) in [
        ([3, 2], Kind::Float),
        ([2, 3], Kind::Double),
        ([2, 3], Kind::BFloat16),
    ] {
        let error = set_grad(&weights, &Tensor::zeros(size, (kind, Device::Cpu))).unwrap_err();
        assert!(error.to_string().contains("gradient of"), "{error}");
    }
}

#[test]
fn a_backward_with_a_given_gradient_is_the_chain_rule() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0]).set_requires_grad(true);
    let y = &x * &x;
    let g = Tensor::from_slice(&[1.0f32, 10.0, 100.0]);
    backward(&[&y], &[&g]).unwrap();
    assert_eq!(Vec::<f32>::try_from(x.grad()).unwrap(), [2.0, 40.0, 600.0]);
    assert!(backward(&[&y], &[]).is_err());
}

#[test]
fn normal_numbers_follow_their_seed_alone() {
    let (n, m) = (Tensor::zeros([1000], CPU), Tensor::zeros([1000], CPU));
    fill_normal(&n, 3, 0.02).unwrap();
    fill_normal(&m, 3, 0.02).unwrap();
    assert_eq!(n, m);
    let deviation = f64::try_from(n.std(true)).unwrap();
    assert!((deviation - 0.02).abs() < 0.002, "{deviation}");
}

#[test]
fn tensor_over_a_vec_outlives_its_view() {
    let t = tensor_from_vec(vec![1.0f32, 2.0, 3.0, 4.0], Kind::Float, &[2, 2]).unwrap();
    let row = t.select(0, 1);
    drop(t);
    assert_eq!(Vec::<f32>::try_from(row).unwrap(), [3.0, 4.0]);
    assert!(tensor_from_vec(vec![1.0f32], Kind::Float, &[2]).is_err());
    assert!(tensor_from_vec(vec![1.0f32], Kind::Half, &[1]).is_err());
    let why = tensor_from_vec(vec![1u64], Kind::Int64, &[1]).unwrap_err();
    assert!(why.0.contains("memory of Int64"), "{why}");
}

#[test]
fn the_bits_of_sixteen_bit_elements_go_in_and_out_as_they_are() {
    // One, minus two, and the smallest number of each format, which a conversion would round to zero.
    for (kind, bits) in [
        (Kind::BFloat16, [0x3f80u16, 0xc000, 0x0001, 0x7f7f]),
        (Kind::Half, [0x3c00, 0xc000, 0x0001, 0x7bff]),
    ] {
        let t = tensor_from_vec(bits.to_vec(), kind, &[2, 2]).unwrap();
        assert_eq!(t.kind(), kind);
        let first = Vec::<f64>::try_from(t.to_kind(Kind::Double).reshape([-1])).unwrap();
        assert_eq!(first[..2], [1.0, -2.0]);
        assert_eq!(vec_from_tensor::<u16>(&t).unwrap(), bits);
        let turned = vec_from_tensor::<u16>(&t.transpose(0, 1)).unwrap();
        assert_eq!(turned, [bits[0], bits[2], bits[1], bits[3]], "in their order");
        let why = vec_from_tensor::<f32>(&t).unwrap_err();
        assert!(why.0.contains("values of 4 bytes for elements"), "{why}");
    }
}
