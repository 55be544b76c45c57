// The sum of the squares of each block of a flat range in double precision, in the tree that worker/torch/src/norm.rs describes: in each
// round the upper half is added to the lower one. Elements that are missing are zeros. Bits as on every other device.

KERNEL(squares, SquaresArguments) {
  constexpr int OWN = SQUARES / THREADS;
  SHARED double parts[THREADS];
  const long long start = BLOCK * SQUARES;
  EACH(t, 0, THREADS) {
    // All elements of a thread are apart by a multiple of the threads, as are those that the first rounds add to each other.
    double own[OWN];
    for (int k = 0; k < OWN; k++) {
      const long long i = start + t + (long long)k * THREADS;
      const double value = i < a.count ? (double)a.values[i] : 0.0;
      own[k] = value * value;
    }
    for (int half = OWN / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; k++) own[k] += own[k + half];
    }
    parts[t] = own[0];
  }
  const double sum = sum_of(parts);
  EACH(t, 0, 1) a.sums[BLOCK] = sum;
}
