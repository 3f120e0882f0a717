// Work of two streams, or of a stream and the host, that nothing orders.
//@ program streams_fill_and_launch
//@   stream a
//@   stream b
//@   alloc x 1024
//@   memset a x
//@   launch b produce x 256
//@   sync
//@   finds stream hazard
//@ program streams_two_writers
//@   stream a
//@   stream b
//@   alloc x 1024
//@   launch a produce x 256
//@   launch b produce x 256
//@   sync
//@   finds stream hazard
//@ program streams_two_readers_one_writer
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   alloc z 1024
//@   launch a produce x 256
//@   sync a
//@   launch a consume x y 256
//@   launch b consume x z 256
//@   launch a produce x 256
//@   sync
//@   finds stream hazard
//@ program streams_event_before_second_launch
//@   stream a
//@   stream b
//@   alloc x 2048
//@   alloc y 1024
//@   launch a produce x 256
//@   record a e
//@   launch a produce x+1024 256
//@   wait b e
//@   pause
//@   launch b consume x+1024 y 256
//@   sync
//@   finds stream hazard
//@ program streams_waits_on_old_event
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   memset a x
//@   record a e
//@   wait b e
//@   launch b consume x y 256
//@   launch a produce x 256
//@   sync
//@   finds stream hazard
//@ program streams_freed_while_used
//@   stream a
//@   stream b
//@   alloc_async a x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   record a e
//@   wait b e
//@   launch b consume x y 256
//@   pause
//@   free_async a x
//@   sync
//@   finds stream hazard
//@ program streams_used_before_made
//@   stream a
//@   stream b
//@   alloc_async a x 1024
//@   launch b produce x 256
//@   sync
//@   finds stream hazard
//@ program streams_pinned_written_twice
//@   stream a
//@   stream b
//@   pinned h 1024
//@   alloc x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   launch b produce y 256
//@   copy_out a x to h
//@   copy_out b y to h
//@   sync
//@   finds stream hazard
//@ program streams_default_and_unordered
//@   stream a
//@   alloc x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   pause
//@   launch default consume x y 256
//@   sync
//@   finds stream hazard
//@ program streams_graph_and_stream
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   capture a
//@   launch a produce x 256
//@   end_capture a g
//@   launch_graph a g
//@   pause
//@   launch b consume x y 256
//@   sync
//@   finds stream hazard
//@ program streams_copy_and_fill
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   fill x 0 1024
//@   fill y 0 1024
//@   sync
//@   copy a y x
//@   memset b x
//@   sync
//@   finds stream hazard
//@ program streams_one_is_synchronised
//@   stream a
//@   stream b
//@   alloc x 1024
//@   alloc y 1024
//@   launch a produce x 256
//@   sync b
//@   pause
//@   launch b consume x y 256
//@   sync
//@   finds stream hazard
//@ program streams_download_too_early
//@   stream a
//@   alloc x 1024
//@   fill x 0 1024
//@   sync
//@   launch a produce x 256
//@   download x 0 1024
//@   sync
//@   finds stream hazard
//@ program streams_upload_while_read
//@   stream a
//@   alloc x 1024
//@   alloc y 1024
//@   upload x 0 1024
//@   launch a consume x y 256
//@   upload x 0 1024
//@   sync
//@   finds stream hazard
//@ program streams_freed_twice
//@   alloc x 1024
//@   free x
//@   free x
//@   finds invalid free
//@ program streams_freed_twice_in_order
//@   stream a
//@   alloc_async a x 1024
//@   free_async a x
//@   free_async a x
//@   sync
//@   finds invalid free
//@ program streams_freed_by_both_calls
//@   stream a
//@   alloc_async a x 1024
//@   free x
//@   free_async a x
//@   sync
//@   finds invalid free

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
