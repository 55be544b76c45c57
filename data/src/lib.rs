//! Indexed token datasets: reader, builder, tokenizers, the seeded sample order.
