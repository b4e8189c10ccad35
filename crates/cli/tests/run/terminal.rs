//! A real terminal: its keys and its hang-up.

use super::{Bed, Log};
use crate::support::Ran;

/// Runs a command on a new terminal, as its session leader, and does there what its steps say:
/// `ready N` waits for N lines in the log, `key` presses ^C, `kill` sends INT to the wrapper alone,
/// `hang` hangs the terminal up. Then the command is told to end. Prints the wrapper's exit code.
const DRIVER: &str = "
import os, pty, signal, sys, threading, time
log, steps, argv = sys.argv[1], sys.argv[2].split(','), sys.argv[3:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(argv[0], argv)
def drain():
    try:
        while os.read(terminal, 4096): pass
    except OSError: pass
def lines():
    try: return open(log).read().count('\\n')
    except FileNotFoundError: return 0
hang = 'hang' in steps
if not hang: threading.Thread(target=drain, daemon=True).start()
for step in steps:
    if step.startswith('ready'):
        until = time.time() + 60
        while lines() < int(step.split()[1]):
            if time.time() > until:
                os.kill(pid, signal.SIGKILL)
                sys.exit(f'not {step}, but {lines()}')
            time.sleep(0.01)
    elif step == 'key': os.write(terminal, b'\\x03')
    elif step == 'kill': os.kill(pid, signal.SIGINT)
    elif step == 'hang': os.close(terminal)
open(log + '.end', 'w')
print(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// What the child logged, with the wrapper's process id and exit code.
fn drive(bed: &Bed, steps: &str) -> (Vec<String>, String, String) {
    let (script, log) = bed.counter();
    let run = bed.run(&[], &["python3", &script, log.path()]);
    let mut driver = std::process::Command::new("python3");
    driver.args(["-c", DRIVER, log.path(), steps]).arg(run.get_program()).args(run.get_args());
    let ran = Ran::of(&mut driver);
    assert_eq!(ran.code, 0, "{ran:?}");
    let (pid, code) = ran.out.trim().split_once(' ').unwrap();
    (Log(log.0).lines(), pid.to_owned(), code.to_owned())
}

#[test]
fn b59_an_interrupt_from_the_terminal_reaches_the_command_exactly_once() {
    let bed = Bed::new();
    let (lines, _, code) = drive(&bed, "ready 1,key,ready 2,key,ready 3,key,ready 4");
    // 128 is the kernel's code: the terminal sent it, and the wrapper added nothing.
    assert_eq!(lines, ["ready", "2 128 0", "2 128 0", "2 128 0"]);
    assert_eq!(code, "7");
    bed.assert_free();
}

#[test]
fn b59_an_interrupt_for_the_wrapper_alone_reaches_the_command_exactly_once() {
    let bed = Bed::new();
    let (lines, wrapper, code) = drive(&bed, "ready 1,kill,ready 2,key,ready 3");
    assert_eq!(lines, ["ready".to_owned(), format!("2 0 {wrapper}"), "2 128 0".to_owned()]);
    assert_eq!(code, "7");
    bed.assert_free();
}

#[test]
fn b64_a_terminal_that_hangs_up_is_told_to_the_command_and_the_lease_is_released() {
    let bed = Bed::new();
    let (lines, wrapper, code) = drive(&bed, "ready 1,hang,ready 2");
    // The kernel tells the session leader alone, which is the wrapper here.
    assert_eq!(lines, ["ready".to_owned(), format!("1 0 {wrapper}")]);
    assert_eq!(code, "7");
    bed.assert_free();
}
