//! [`penstock_fuzz::saved`] under libFuzzer: `scripts/fuzz.sh saved`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::saved::run(data));
