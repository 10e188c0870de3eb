//! [`penstock_fuzz::headers`] under libFuzzer: `scripts/fuzz.sh headers`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::headers::run(data));
