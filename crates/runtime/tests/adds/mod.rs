//! A kernel that counts its launches in memory.

/// `values[0] += value`, by one thread.
pub(crate) const ADD: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 values, .param .u32 value)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [values];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %d1, %d1;
    ld.global.u32 %r2, [%d1];
    add.u32 %r2, %r2, %r1;
    st.global.u32 [%d1], %r2;
    ret;
}
";
