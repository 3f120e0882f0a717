// Built with --default-stream per-thread: the twins of the functions, and the thread's own stream.
#include "common.h"
__global__ void add(int* at, int by) { at[threadIdx.x] += by; }
int main() {
    int* at;
    int host[32];
    OK(cudaMalloc(&at, sizeof host));
    OK(cudaMemset(at, 0, sizeof host));
    add<<<1, 32>>>(at, 4);
    OK(cudaMemcpyAsync(host, at, sizeof host, cudaMemcpyDeviceToHost, 0));
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT(host[31] == 4);
    cudaGraph_t graph;
    // The thread's own default stream can be captured, the legacy one cannot.
    OK(cudaStreamBeginCapture(0, cudaStreamCaptureModeThreadLocal));
    add<<<1, 32>>>(at, 5);
    OK(cudaStreamEndCapture(0, &graph));
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaMemcpy(host, at, sizeof host, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 9);
    CODE(cudaErrorStreamCaptureUnsupported,
         cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeGlobal));
    cudaGetLastError();
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(at));
    std::puts("all right");
}
