#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| amqp_fuzz::method(input));
