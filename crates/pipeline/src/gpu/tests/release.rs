//! What the paper's release does wrong in serving, put back into our kernels (docs/notes/release-defects.md).

use ::gpu::Compiler;

use super::*;

/// The value of the answer to a request in each of two slots; none where an answer is not whole or not there.
fn answers(planted: Option<(usize, &'static str)>) -> [Option<f32>; 2] {
    let pipeline = TestPipeline::new(Arrival::Flag, None, planted);
    let mut peer = pipeline.join(0, 0, 2);
    let slots = [1, 2].map(|id| pipeline.ask(&mut peer, id, 10.0 * id as f32).slot);
    for _ in slots {
        assert_eq!(pipeline.turn().1, State::Request);
    }
    peer.execute(0);
    slots.map(|slot| peer.answer(slot).ok().and_then(|(_, value)| value))
}

/// S2: the loads that poll are neither volatile nor acquiring, and neither is that of the stop flag.
#[test]
fn release_s2_flags_and_the_stop_word_are_read_afresh_and_acquired() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let compiler = Compiler::load(&toolkit).unwrap();
    let ours_alone = ptx(&compiler, &launch::SOURCES[0], None);
    for (what, instruction, ours, plain) in [
        (
            "the load of a slot's flag",
            "ld.relaxed.sys.global.u64",
            "db_load_cqe_tail(look.flags + slot * look.flag_stride)",
            "*(const db_u64 *)(look.flags + slot * look.flag_stride)",
        ),
        (
            "the fence between a flag and its request",
            "fence.acquire.sys",
            "db_acquire_cqe();\n            db_tell_found",
            "db_tell_found",
        ),
        (
            "the load of the stop word",
            "ld.acquire.sys.global.u32",
            "db_load_acquire_sys32(wait->cancel)",
            "*(const db_u32 *)wait->cancel",
        ),
    ] {
        let planted = ptx(&compiler, &launch::SOURCES[0], Some((ours, plain)));
        let [all, without] = [&ours_alone, &planted].map(|text| text.matches(instruction).count());
        // A loop that is unrolled has it several times.
        assert!(all > without, "{what}: {instruction}");
    }
}

/// S3: the kernel that copies outputs copies the slot into the model's output.
#[test]
fn release_s3_outputs_are_copied_into_the_slot() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(answers(None), [Some(11.0), Some(21.0)]);
    let planted = answers(Some((2, "put_outputs+DB_DEFECT_REVERSED_COPY")));
    assert_eq!(planted, [Some(0.0); 2], "the defect is not seen");
}

/// S4: grid and block are exchanged, the launch's status is ignored, and the slot to answer is never set.
#[test]
fn release_s4_a_launch_that_a_gpu_refuses_is_an_error_and_each_slot_has_its_own_answer() {
    need!(has_compiler(), cc, "a C++ compiler");
    let pipeline = TestPipeline::new(Arrival::Flag, None, None);
    for step in [1, 2] {
        let mut told = pipeline.served.core.told;
        // The release's launch for 1,228,800 bytes.
        told.shapes[step] = [512, 2401];
        let steps = launch::Steps::new(&pipeline.served.core.machine, told).unwrap();
        let ran = steps.run(step, pipeline.served.core.wait, Arc::clone(&pipeline.served.core));
        let error = ran.expect_err("a block of 2401 threads").to_string();
        assert!(error.contains("2401"), "{error}");
    }
    assert_eq!(answers(None), [Some(11.0), Some(21.0)]);
    let planted = answers(Some((0, "wait_inputs+DB_DEFECT_SLOT_NOT_SET")));
    assert_eq!(planted, [None; 2], "the defect is not seen");
}

/// S5: one thread copies the outputs, which is its own few bytes of them.
#[test]
fn release_s5_all_threads_together_copy_the_whole_output() {
    need!(has_compiler(), cc, "a C++ compiler");
    assert_eq!(answers(None), [Some(11.0), Some(21.0)]);
    let planted = answers(Some((2, "put_outputs+DB_DEFECT_ONE_THREAD")));
    assert_eq!(planted, [None; 2], "the defect is not seen");
}
