//! Which process this is, without asking the system each time.
//!
//! Whoever takes locks asks several times in each call, to tell a forked child that goes on with what is its
//! parent's. The number is kept on a page that the system empties for every child, by whatever call it was
//! made.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The number, 0 where it is not known yet; never freed.
static KEPT: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// Such a page cannot be had.
static IS_NOT_OFFERED: AtomicBool = AtomicBool::new(false);

/// The number of this process.
///
/// Not for the moment between `vfork` and `exec`: that child has its parent's memory.
#[expect(unsafe_code, reason = "a page that is empty after a fork")]
pub fn process_id() -> u32 {
    let page = KEPT.load(Ordering::Acquire);
    // No lock: a child that is forked while another thread holds it would wait for ever.
    let page = if page.is_null() { keep() } else { page };
    // SAFETY: null, or a page that is never unmapped and accessed by atomics alone.
    let Some(kept) = (unsafe { page.as_ref() }) else { return std::process::id() };
    match kept.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            kept.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Makes the page; null if that is not offered.
#[cold]
#[expect(unsafe_code, reason = "a page that is empty after a fork")]
fn keep() -> *mut AtomicU32 {
    if IS_NOT_OFFERED.load(Ordering::Relaxed) {
        return ptr::null_mut();
    }
    // The system makes a page of it.
    let bytes = size_of::<AtomicU32>();
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the system's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        IS_NOT_OFFERED.store(true, Ordering::Relaxed);
        return ptr::null_mut();
    }
    // SAFETY: the page that was just mapped, which nobody else knows.
    let is_offered = unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } == 0;
    let made = page.cast::<AtomicU32>();
    let kept = if is_offered {
        let null = ptr::null_mut();
        KEPT.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire).err()
    } else {
        IS_NOT_OFFERED.store(true, Ordering::Relaxed);
        Some(ptr::null_mut())
    };
    if kept.is_some() {
        // SAFETY: nobody was told of it.
        unsafe { libc::munmap(page, bytes) };
    }
    kept.unwrap_or(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_system_says_in_every_thread() {
        let threads = [(); 8].map(|()| std::thread::spawn(process_id));
        for thread in threads {
            assert_eq!(thread.join().unwrap(), std::process::id());
        }
        assert!(!KEPT.load(Ordering::Acquire).is_null(), "every system since Linux 4.14 offers it");
    }

    #[test]
    #[expect(unsafe_code, reason = "forks")]
    fn a_child_and_its_child_know_that_they_are_others() {
        let own = process_id();
        // SAFETY: the children call nothing but `fork`, `waitpid`, `_exit` and what asks for the number of a
        // process, which allocates nothing.
        let status = unsafe {
            let wait = |child| {
                let mut status = 0;
                if libc::waitpid(child, &raw mut status, 0) == child { status } else { -1 }
            };
            let child = libc::fork();
            if child == 0 {
                let id = process_id();
                let is_right = id != own && id == std::process::id();
                let grandchild = libc::fork();
                if grandchild == 0 {
                    let is_right = process_id() != id && process_id() == std::process::id();
                    libc::_exit(i32::from(!is_right));
                }
                libc::_exit(i32::from(!is_right || wait(grandchild) != 0));
            }
            wait(child)
        };
        assert_eq!(status, 0);
        assert_eq!(process_id(), own);
    }
}
