// Streams, events, callbacks, pools, captures, graphs of every kind of node, updates.
#include "common.h"
#include <atomic>
#include <thread>
#include <vector>

__global__ void add(int* at, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) at[i] += by;
}
__device__ int settings[4];
__global__ void use_settings(int* at) { at[threadIdx.x] = settings[threadIdx.x]; }

static std::atomic<int> called;
static void CUDART_CB note(void* by) { called += *(int*)by; }
static void CUDART_CB note_stream(cudaStream_t, cudaError_t status, void* by) {
    if (status == cudaSuccess) called += *(int*)by;
}

static int sum(const int* at, int n) {
    std::vector<int> host(n);
    OK(cudaMemcpy(host.data(), at, n * sizeof(int), cudaMemcpyDeviceToHost));
    int all = 0;
    for (int it : host) all += it;
    return all;
}

int main() {
    const int n = 512;
    cudaStream_t a, b;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    int least, greatest;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&b, cudaStreamNonBlocking, greatest));
    int priority;
    OK(cudaStreamGetPriority(b, &priority));
    EXPECT(priority == greatest);
    cudaEvent_t start, end;
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));

    // Work of two streams, ordered by an event.
    int* at;
    OK(cudaMallocAsync(&at, n * sizeof(int), a));
    OK(cudaMemsetAsync(at, 0, n * sizeof(int), a));
    OK(cudaEventRecord(start, a));
    OK(cudaStreamWaitEvent(b, start, 0));
    add<<<2, 256, 0, b>>>(at, n, 3);
    int by = 5;
    OK(cudaLaunchHostFunc(b, note, &by));
    OK(cudaStreamAddCallback(b, note_stream, &by, 0));
    OK(cudaEventRecord(end, b));
    OK(cudaEventSynchronize(end));
    OK(cudaEventQuery(end));
    OK(cudaStreamQuery(b));
    EXPECT(called == 10);
    float ms = -1;
    OK(cudaEventElapsedTime(&ms, start, end));
    EXPECT(ms >= 0);
    EXPECT(sum(at, n) == 3 * n);

    // Pools.
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    unsigned long long threshold = ~0ull, read = 0;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
    EXPECT(read == threshold);
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t own;
    OK(cudaMemPoolCreate(&own, &props));
    void* of_pool;
    OK(cudaMallocFromPoolAsync(&of_pool, 1000, own, a));
    OK(cudaFreeAsync(of_pool, a));
    OK(cudaStreamSynchronize(a));
    OK(cudaMemPoolDestroy(own));

    // A capture with a fork, a join and a stream that is destroyed before its end.
    cudaGraph_t graph;
    cudaStream_t fork;
    OK(cudaStreamCreateWithFlags(&fork, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    add<<<2, 256, 0, a>>>(at, n, 1);
    OK(cudaEventRecord(start, a));
    OK(cudaStreamWaitEvent(fork, start, 0));
    add<<<2, 256, 0, fork>>>(at, n, 10);
    OK(cudaEventRecord(end, fork));
    OK(cudaStreamWaitEvent(a, end, 0));
    OK(cudaStreamDestroy(fork));
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(a, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(a, &graph));
    size_t nodes = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT(nodes == 2);
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 3; round++) OK(cudaGraphLaunch(exec, a));
    OK(cudaStreamSynchronize(a));
    EXPECT(sum(at, n) == (3 + 3 * 11) * n);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));

    // A graph by its nodes.
    int host[4] = {1, 2, 3, 4}, back[4] = {};
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t fill, kernel, out, in, call, use;
    cudaMemsetParams memset = {};
    memset.dst = at;
    memset.elementSize = 4;
    memset.value = 100;
    memset.width = n;
    memset.height = 1;
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
    int count = n, two = 2;
    void* arguments[] = {&at, &count, &two};
    cudaKernelNodeParams params = {};
    params.func = (void*)add;
    params.gridDim = dim3(2);
    params.blockDim = dim3(256);
    params.kernelParams = arguments;
    OK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &params));
    OK(cudaGraphAddMemcpyNodeToSymbol(&in, graph, nullptr, 0, settings, host, sizeof host, 0,
                                      cudaMemcpyHostToDevice));
    cudaHostNodeParams callback = {note, &by};
    OK(cudaGraphAddHostNode(&call, graph, &kernel, 1, &callback));
    void* target[] = {&at};
    cudaKernelNodeParams second = {};
    second.func = (void*)use_settings;
    second.gridDim = dim3(1);
    second.blockDim = dim3(4);
    second.kernelParams = target;
    cudaGraphNode_t both[] = {call, in};
    OK(cudaGraphAddKernelNode(&use, graph, both, 2, &second));
    OK(cudaGraphAddMemcpyNode1D(&out, graph, &use, 1, back, at, sizeof back,
                                cudaMemcpyDeviceToHost));
    cudaKernelNodeParams again = {};
    OK(cudaGraphKernelNodeGetParams(kernel, &again));
    EXPECT(again.func == (void*)add && again.blockDim.x == 256);
    cudaMemcpy3DParms copy = {};
    OK(cudaGraphMemcpyNodeGetParams(out, &copy));
    EXPECT(copy.extent.width == sizeof back && copy.kind == cudaMemcpyDeviceToHost);
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(out, &type));
    EXPECT(type == cudaGraphNodeTypeMemcpy);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    called = 0;
    OK(cudaGraphLaunch(exec, b));
    OK(cudaStreamSynchronize(b));
    EXPECT(called == 5 && back[0] == 1 && back[3] == 4);
    EXPECT(sum(at, n) == 102 * (n - 4) + 10);
    two = 7;
    OK(cudaGraphExecKernelNodeSetParams(exec, kernel, &params));
    OK(cudaGraphLaunch(exec, b));
    OK(cudaStreamSynchronize(b));
    EXPECT(sum(at, n) == 107 * (n - 4) + 10);
    // The executable graph follows a changed graph.
    memset.value = 200;
    OK(cudaGraphMemsetNodeSetParams(fill, &memset));
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphExecUpdate(exec, graph, &info));
    OK(cudaGraphLaunch(exec, b));
    OK(cudaStreamSynchronize(b));
    EXPECT(sum(at, n) == 202 * (n - 4) + 10);
    OK(cudaGraphExecDestroy(exec));

    // Nodes by the general function, a clone, and an object that the graph owns.
    cudaGraph_t clone;
    OK(cudaGraphClone(&clone, graph));
    cudaUserObject_t object;
    called = 0;
    OK(cudaUserObjectCreate(&object, &by, note, 1, cudaUserObjectNoDestructorSync));
    OK(cudaGraphRetainUserObject(clone, object, 1, cudaGraphUserObjectMove));
    cudaGraphNodeParams general = {};
    general.type = cudaGraphNodeTypeKernel;
    general.kernel.func = (void*)add;
    general.kernel.gridDim = dim3(2);
    general.kernel.blockDim = dim3(256);
    general.kernel.kernelParams = arguments;
    cudaGraphNode_t last;
    OK(cudaGraphAddNode(&last, clone, nullptr, nullptr, 0, &general));
    OK(cudaGraphDestroy(clone));
    for (int wait = 0; wait < 1000 && called == 0; wait++)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT(called == 5);
    OK(cudaGraphDestroy(graph));

    // Another thread has its own last error and the same device.
    std::thread([&] {
        EXPECT(cudaEventQuery((cudaEvent_t)99) != cudaSuccess);
        EXPECT(cudaGetLastError() != cudaSuccess);
        add<<<2, 256>>>(at, n, 0);
        OK(cudaStreamSynchronize(0));
    }).join();
    OK(cudaGetLastError());
    OK(cudaFreeAsync(at, a));
    OK(cudaStreamSynchronize(a));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    std::puts("all right");
}
