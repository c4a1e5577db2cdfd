//! A queue pair that is connected to itself writes 64 bytes.

use std::error::Error;
use std::time::{Duration, Instant};

use verbs::code::{Access, WcStatus};
use verbs::connect::{Hello, PathOptions, QpOffer};
use verbs::{Cq, Mr, Pages, Payload, QpBuilder, QpType, SendOperation, SendRequest, WorkCompletion};

#[softnic_test::test]
fn a_write_arrives() -> Result<(), Box<dyn Error>> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (context, path) = PathOptions::default().open()?;
    let pd = context.alloc_pd()?;
    let mut cq = Cq::new(&context, 16)?;
    let mut qp = QpBuilder::new(QpType::Rc).build(&pd, &cq, &cq)?;
    let memory = Mr::register(&pd, Pages::new(128)?, access)?;
    let offer = QpOffer::new(&qp);
    path.to_init(&qp, access, 0)?;
    path.connect(&qp, offer, &Hello::new(&path, QpType::Rc, vec![offer], Vec::new(), ()), offer)?;

    memory.write(0, b"hello through a NIC");
    let source = [memory.sge(0..64)?];
    let write = SendOperation::Write(memory.remote(64)?);
    qp.post_send(&SendRequest::new(1, write, Payload::Gather(&source)))?;
    let (mut found, since) = ([WorkCompletion::default()], Instant::now());
    while cq.poll(&mut found)? == 0 {
        assert!(since.elapsed() < Duration::from_secs(10), "no completion within 10 s");
    }
    assert_eq!(found[0].status(), WcStatus::Success);
    let mut arrived = [0; 19];
    memory.read(64, &mut arrived);
    assert_eq!(&arrived, b"hello through a NIC");
    Ok(())
}
