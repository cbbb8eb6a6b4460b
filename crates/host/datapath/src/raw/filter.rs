use std::{io, os::fd::OwnedFd};

use crate::sys;

/// One instruction of classic BPF (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterInstruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the comparison holds.
    pub jump_true: u8,
    /// Instructions to skip if it does not.
    pub jump_false: u8,
    /// Operand.
    pub operand: u32,
}

/// A classic BPF program over the frame from its Ethernet header on; its result is the number of bytes to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(pub Vec<FilterInstruction>);

impl Filter {
    /// Accepts frames of this EtherType only.
    #[must_use]
    pub fn ethertype(ethertype: u16) -> Self {
        let load = FilterInstruction {
            code: (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16,
            jump_true: 0,
            jump_false: 0,
            operand: 12,
        };
        let compare = FilterInstruction {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jump_true: 0,
            jump_false: 1,
            operand: ethertype.into(),
        };
        let code = (libc::BPF_RET | libc::BPF_K) as u16;
        let accept = FilterInstruction { code, jump_true: 0, jump_false: 0, operand: u32::MAX };
        let refuse = FilterInstruction { operand: 0, ..accept };
        Self(vec![load, compare, accept, refuse])
    }

    pub(crate) fn attach(&self, fd: &OwnedFd) -> io::Result<()> {
        let mut program: Vec<libc::sock_filter> = self
            .0
            .iter()
            .map(|one| libc::sock_filter { code: one.code, jt: one.jump_true, jf: one.jump_false, k: one.operand })
            .collect();
        let len = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // The kernel copies the program during the call, so the pointer need not outlive it.
        let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }
}
