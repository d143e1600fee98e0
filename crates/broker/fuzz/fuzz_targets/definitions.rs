#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| broker_fuzz::definitions(input));
