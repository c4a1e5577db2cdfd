//! A program, here or on a host, that is asked for numbers again and again.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use serde_json::Value;

use crate::process::{JsonProgram, WAIT};

/// Asked until its first failure: a late answer would be taken for the next one.
#[derive(Debug)]
pub struct Reader {
    /// What its errors begin with.
    name: String,
    /// Error: why nothing is read.
    program: Mutex<Result<JsonProgram, String>>,
}

impl Reader {
    /// Of a program, or of why it was not started.
    pub fn of(name: &str, started: Result<JsonProgram>) -> Reader {
        let program = Mutex::new(started.map_err(|error| format!("{name}: {error:#}")));
        Reader { name: name.to_owned(), program }
    }

    fn program(&self) -> MutexGuard<'_, Result<JsonProgram, String>> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its process, while it is asked.
    pub fn process(&self) -> Option<u32> {
        self.program().as_ref().ok().map(|program| program.child.0.id())
    }

    /// What `read` finds in the answer to a request. Error: that of the first failure.
    pub fn ask<T>(&self, request: &Value, read: impl FnOnce(Value) -> Result<T>) -> Result<T, String> {
        let mut program = self.program();
        let said = program.as_mut().map_err(|why| why.clone())?.ask(request, WAIT).and_then(read);
        said.map_err(|error| {
            let why = format!("{}: {error:#}", self.name);
            *program = Err(why.clone());
            why
        })
    }
}

/// Starts a shell that says when it is ready.
pub fn ready(command: &mut Command, log: &Path) -> Result<JsonProgram> {
    let mut shell = JsonProgram::start(command, log)?;
    shell.json("ready", WAIT)?;
    Ok(shell)
}
