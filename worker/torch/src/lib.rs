//! What tch lacks, as a safe layer over a small C++ shim: the only unsafe code of the project.
