/* Every OpenCL function the layer watches, one row each; everything made per function comes from
 * this table.
 *
 * To include it, define either CALL(name), for a plain list of the names, or all of these:
 *
 *   STATUS   (name, params, args)              gives a cl_int and has no effect that is counted
 *   CREATE   (name, kind, type, params, args)  gives a new object; the last parameter is
 * errcode_ret RETAIN   (name, kind, type)                adds a reference to an object RELEASE
 * (name, kind, type)                takes one away ENQUEUE  (name, params, args)              may
 * give an event; the last parameter is event BLOCKING (name, params, args)              likewise,
 * and waits if its parameter blocking is true CUSTOM   (name)                            written by
 * hand in fakedev.c; EXTENSION (name) likewise, and reached through
 * clGetExtensionFunctionAddressForPlatform: it has no entry in the dispatch table
 *
 * Not watched: sharing with GL, EGL and Direct3D, and extension functions without a row.
 */
#ifdef CALL
#ifndef EXTENSION
#define EXTENSION(name) CALL(name)
#endif
#define STATUS(name, params, args) CALL(name)
#define CREATE(name, kind, type, params, args) CALL(name)
#define RETAIN(name, kind, type) CALL(name)
#define RELEASE(name, kind, type) CALL(name)
#define ENQUEUE(name, params, args) CALL(name)
#define BLOCKING(name, params, args) CALL(name)
#define CUSTOM(name) CALL(name)
#endif

/* clang-format off */

/* Platforms and devices */
STATUS(clGetPlatformIDs, (cl_uint num_entries, cl_platform_id *platforms, cl_uint *num_platforms),
       (num_entries, platforms, num_platforms))
STATUS(clGetPlatformInfo,
       (cl_platform_id platform, cl_platform_info name, size_t size, void *value, size_t *size_ret),
       (platform, name, size, value, size_ret))
CUSTOM(clGetExtensionFunctionAddressForPlatform)
STATUS(clUnloadPlatformCompiler, (cl_platform_id platform), (platform))
CUSTOM(clGetDeviceIDs)
CUSTOM(clGetDeviceInfo)
CUSTOM(clCreateSubDevices)
RETAIN(clRetainDevice, CLATTN_FAKEDEV_DEVICE, cl_device_id)
RELEASE(clReleaseDevice, CLATTN_FAKEDEV_DEVICE, cl_device_id)

/* Contexts */
CREATE(clCreateContext, CLATTN_FAKEDEV_CONTEXT, cl_context,
       (const cl_context_properties *properties, cl_uint num_devices, const cl_device_id *devices,
        void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user_data,
        cl_int *errcode_ret),
       (properties, num_devices, devices, notify, user_data, errcode_ret))
CUSTOM(clCreateContextFromType)
RETAIN(clRetainContext, CLATTN_FAKEDEV_CONTEXT, cl_context)
RELEASE(clReleaseContext, CLATTN_FAKEDEV_CONTEXT, cl_context)
STATUS(clGetContextInfo,
       (cl_context context, cl_context_info name, size_t size, void *value, size_t *size_ret),
       (context, name, size, value, size_ret))
STATUS(clSetContextDestructorCallback,
       (cl_context context, void(CL_CALLBACK *notify)(cl_context, void *), void *user_data),
       (context, notify, user_data))

/* Queues */
CREATE(clCreateCommandQueue, CLATTN_FAKEDEV_QUEUE, cl_command_queue,
       (cl_context context, cl_device_id device, cl_command_queue_properties properties,
        cl_int *errcode_ret),
       (context, device, properties, errcode_ret))
CREATE(clCreateCommandQueueWithProperties, CLATTN_FAKEDEV_QUEUE, cl_command_queue,
       (cl_context context, cl_device_id device, const cl_queue_properties *properties,
        cl_int *errcode_ret),
       (context, device, properties, errcode_ret))
RETAIN(clRetainCommandQueue, CLATTN_FAKEDEV_QUEUE, cl_command_queue)
RELEASE(clReleaseCommandQueue, CLATTN_FAKEDEV_QUEUE, cl_command_queue)
STATUS(clGetCommandQueueInfo,
       (cl_command_queue queue, cl_command_queue_info name, size_t size, void *value, size_t *size_ret),
       (queue, name, size, value, size_ret))
STATUS(clFlush, (cl_command_queue queue), (queue))
STATUS(clFinish, (cl_command_queue queue), (queue))

/* Memory objects and samplers */
CUSTOM(clCreateBuffer)
CUSTOM(clCreateBufferWithProperties)
CREATE(clCreateSubBuffer, CLATTN_FAKEDEV_BUFFER, cl_mem,
       (cl_mem buffer, cl_mem_flags flags, cl_buffer_create_type type, const void *info,
        cl_int *errcode_ret),
       (buffer, flags, type, info, errcode_ret))
CREATE(clCreateImage, CLATTN_FAKEDEV_BUFFER, cl_mem,
       (cl_context context, cl_mem_flags flags, const cl_image_format *format,
        const cl_image_desc *desc, void *host_ptr, cl_int *errcode_ret),
       (context, flags, format, desc, host_ptr, errcode_ret))
CREATE(clCreateImageWithProperties, CLATTN_FAKEDEV_BUFFER, cl_mem,
       (cl_context context, const cl_mem_properties *properties, cl_mem_flags flags,
        const cl_image_format *format, const cl_image_desc *desc, void *host_ptr,
        cl_int *errcode_ret),
       (context, properties, flags, format, desc, host_ptr, errcode_ret))
CREATE(clCreateImage2D, CLATTN_FAKEDEV_BUFFER, cl_mem,
       (cl_context context, cl_mem_flags flags, const cl_image_format *format, size_t width,
        size_t height, size_t row_pitch, void *host_ptr, cl_int *errcode_ret),
       (context, flags, format, width, height, row_pitch, host_ptr, errcode_ret))
CREATE(clCreateImage3D, CLATTN_FAKEDEV_BUFFER, cl_mem,
       (cl_context context, cl_mem_flags flags, const cl_image_format *format, size_t width,
        size_t height, size_t depth, size_t row_pitch, size_t slice_pitch, void *host_ptr,
        cl_int *errcode_ret),
       (context, flags, format, width, height, depth, row_pitch, slice_pitch, host_ptr, errcode_ret))
CREATE(clCreatePipe, CLATTN_FAKEDEV_BUFFER, cl_mem,
       (cl_context context, cl_mem_flags flags, cl_uint packet_size, cl_uint max_packets,
        const cl_pipe_properties *properties, cl_int *errcode_ret),
       (context, flags, packet_size, max_packets, properties, errcode_ret))
RETAIN(clRetainMemObject, CLATTN_FAKEDEV_BUFFER, cl_mem)
RELEASE(clReleaseMemObject, CLATTN_FAKEDEV_BUFFER, cl_mem)
STATUS(clGetMemObjectInfo,
       (cl_mem object, cl_mem_info name, size_t size, void *value, size_t *size_ret),
       (object, name, size, value, size_ret))
STATUS(clGetImageInfo,
       (cl_mem image, cl_image_info name, size_t size, void *value, size_t *size_ret),
       (image, name, size, value, size_ret))
STATUS(clGetSupportedImageFormats,
       (cl_context context, cl_mem_flags flags, cl_mem_object_type type, cl_uint num_entries,
        cl_image_format *formats, cl_uint *num_formats),
       (context, flags, type, num_entries, formats, num_formats))
STATUS(clSetMemObjectDestructorCallback,
       (cl_mem object, void(CL_CALLBACK *notify)(cl_mem, void *), void *user_data),
       (object, notify, user_data))
CUSTOM(clSVMAlloc)
CUSTOM(clSVMFree)
CREATE(clCreateSampler, CLATTN_FAKEDEV_SAMPLER, cl_sampler,
       (cl_context context, cl_bool normalized, cl_addressing_mode addressing, cl_filter_mode filter,
        cl_int *errcode_ret),
       (context, normalized, addressing, filter, errcode_ret))
CREATE(clCreateSamplerWithProperties, CLATTN_FAKEDEV_SAMPLER, cl_sampler,
       (cl_context context, const cl_sampler_properties *properties, cl_int *errcode_ret),
       (context, properties, errcode_ret))
RETAIN(clRetainSampler, CLATTN_FAKEDEV_SAMPLER, cl_sampler)
RELEASE(clReleaseSampler, CLATTN_FAKEDEV_SAMPLER, cl_sampler)

/* Programs */
CREATE(clCreateProgramWithSource, CLATTN_FAKEDEV_PROGRAM, cl_program,
       (cl_context context, cl_uint count, const char **strings, const size_t *lengths,
        cl_int *errcode_ret),
       (context, count, strings, lengths, errcode_ret))
CREATE(clCreateProgramWithBinary, CLATTN_FAKEDEV_PROGRAM, cl_program,
       (cl_context context, cl_uint num_devices, const cl_device_id *devices, const size_t *lengths,
        const unsigned char **binaries, cl_int *binary_status, cl_int *errcode_ret),
       (context, num_devices, devices, lengths, binaries, binary_status, errcode_ret))
CREATE(clCreateProgramWithIL, CLATTN_FAKEDEV_PROGRAM, cl_program,
       (cl_context context, const void *il, size_t length, cl_int *errcode_ret),
       (context, il, length, errcode_ret))
CREATE(clCreateProgramWithBuiltInKernels, CLATTN_FAKEDEV_PROGRAM, cl_program,
       (cl_context context, cl_uint num_devices, const cl_device_id *devices, const char *names,
        cl_int *errcode_ret),
       (context, num_devices, devices, names, errcode_ret))
CREATE(clLinkProgram, CLATTN_FAKEDEV_PROGRAM, cl_program,
       (cl_context context, cl_uint num_devices, const cl_device_id *devices, const char *options,
        cl_uint num_programs, const cl_program *programs,
        void(CL_CALLBACK *notify)(cl_program, void *), void *user_data, cl_int *errcode_ret),
       (context, num_devices, devices, options, num_programs, programs, notify, user_data,
        errcode_ret))
RETAIN(clRetainProgram, CLATTN_FAKEDEV_PROGRAM, cl_program)
RELEASE(clReleaseProgram, CLATTN_FAKEDEV_PROGRAM, cl_program)
CUSTOM(clBuildProgram)
CUSTOM(clCompileProgram)
STATUS(clSetProgramSpecializationConstant,
       (cl_program program, cl_uint id, size_t size, const void *value), (program, id, size, value))
STATUS(clGetProgramInfo,
       (cl_program program, cl_program_info name, size_t size, void *value, size_t *size_ret),
       (program, name, size, value, size_ret))
STATUS(clGetProgramBuildInfo,
       (cl_program program, cl_device_id device, cl_program_build_info name, size_t size, void *value,
        size_t *size_ret),
       (program, device, name, size, value, size_ret))

/* Kernels */
CREATE(clCreateKernel, CLATTN_FAKEDEV_KERNEL, cl_kernel,
       (cl_program program, const char *name, cl_int *errcode_ret), (program, name, errcode_ret))
CREATE(clCloneKernel, CLATTN_FAKEDEV_KERNEL, cl_kernel, (cl_kernel kernel, cl_int *errcode_ret),
       (kernel, errcode_ret))
CUSTOM(clCreateKernelsInProgram)
RETAIN(clRetainKernel, CLATTN_FAKEDEV_KERNEL, cl_kernel)
RELEASE(clReleaseKernel, CLATTN_FAKEDEV_KERNEL, cl_kernel)
STATUS(clSetKernelArg, (cl_kernel kernel, cl_uint index, size_t size, const void *value),
       (kernel, index, size, value))
STATUS(clSetKernelArgSVMPointer, (cl_kernel kernel, cl_uint index, const void *value),
       (kernel, index, value))
EXTENSION(clSetKernelArgMemPointerINTEL)
STATUS(clSetKernelExecInfo,
       (cl_kernel kernel, cl_kernel_exec_info name, size_t size, const void *value),
       (kernel, name, size, value))
STATUS(clGetKernelInfo,
       (cl_kernel kernel, cl_kernel_info name, size_t size, void *value, size_t *size_ret),
       (kernel, name, size, value, size_ret))
STATUS(clGetKernelArgInfo,
       (cl_kernel kernel, cl_uint index, cl_kernel_arg_info name, size_t size, void *value,
        size_t *size_ret),
       (kernel, index, name, size, value, size_ret))
CUSTOM(clGetKernelWorkGroupInfo)
STATUS(clGetKernelSubGroupInfo,
       (cl_kernel kernel, cl_device_id device, cl_kernel_sub_group_info name, size_t input_size,
        const void *input, size_t size, void *value, size_t *size_ret),
       (kernel, device, name, input_size, input, size, value, size_ret))
STATUS(clGetKernelSubGroupInfoKHR,
       (cl_kernel kernel, cl_device_id device, cl_kernel_sub_group_info name, size_t input_size,
        const void *input, size_t size, void *value, size_t *size_ret),
       (kernel, device, name, input_size, input, size, value, size_ret))

/* Events */
CREATE(clCreateUserEvent, CLATTN_FAKEDEV_EVENT, cl_event, (cl_context context, cl_int *errcode_ret),
       (context, errcode_ret))
RETAIN(clRetainEvent, CLATTN_FAKEDEV_EVENT, cl_event)
RELEASE(clReleaseEvent, CLATTN_FAKEDEV_EVENT, cl_event)
STATUS(clSetUserEventStatus, (cl_event event, cl_int execution_status), (event, execution_status))
STATUS(clSetEventCallback,
       (cl_event event, cl_int type, void(CL_CALLBACK *notify)(cl_event, cl_int, void *),
        void *user_data),
       (event, type, notify, user_data))
STATUS(clWaitForEvents, (cl_uint num_events, const cl_event *events), (num_events, events))
STATUS(clGetEventInfo,
       (cl_event event, cl_event_info name, size_t size, void *value, size_t *size_ret),
       (event, name, size, value, size_ret))
STATUS(clGetEventProfilingInfo,
       (cl_event event, cl_profiling_info name, size_t size, void *value, size_t *size_ret),
       (event, name, size, value, size_ret))

/* Commands */
CUSTOM(clEnqueueNDRangeKernel)
CUSTOM(clEnqueueTask)
EXTENSION(clCommandNDRangeKernelKHR)
ENQUEUE(clEnqueueNativeKernel,
        (cl_command_queue queue, void(CL_CALLBACK *function)(void *), void *args, size_t args_size,
         cl_uint num_objects, const cl_mem *objects, const void **object_locations, cl_uint num_wait,
         const cl_event *wait, cl_event *event),
        (queue, function, args, args_size, num_objects, objects, object_locations, num_wait, wait,
         event))
ENQUEUE(clEnqueueMarkerWithWaitList,
        (cl_command_queue queue, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, num_wait, wait, event))
ENQUEUE(clEnqueueBarrierWithWaitList,
        (cl_command_queue queue, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, num_wait, wait, event))
ENQUEUE(clEnqueueMarker, (cl_command_queue queue, cl_event *event), (queue, event))
STATUS(clEnqueueBarrier, (cl_command_queue queue), (queue))
STATUS(clEnqueueWaitForEvents,
       (cl_command_queue queue, cl_uint num_events, const cl_event *events),
       (queue, num_events, events))
BLOCKING(clEnqueueReadBuffer,
         (cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size,
          void *data, cl_uint num_wait, const cl_event *wait, cl_event *event),
         (queue, buffer, blocking, offset, size, data, num_wait, wait, event))
BLOCKING(clEnqueueWriteBuffer,
         (cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size,
          const void *data, cl_uint num_wait, const cl_event *wait, cl_event *event),
         (queue, buffer, blocking, offset, size, data, num_wait, wait, event))
BLOCKING(clEnqueueReadBufferRect,
         (cl_command_queue queue, cl_mem buffer, cl_bool blocking, const size_t *buffer_origin,
          const size_t *host_origin, const size_t *region, size_t buffer_row, size_t buffer_slice,
          size_t host_row, size_t host_slice, void *data, cl_uint num_wait, const cl_event *wait,
          cl_event *event),
         (queue, buffer, blocking, buffer_origin, host_origin, region, buffer_row, buffer_slice,
          host_row, host_slice, data, num_wait, wait, event))
BLOCKING(clEnqueueWriteBufferRect,
         (cl_command_queue queue, cl_mem buffer, cl_bool blocking, const size_t *buffer_origin,
          const size_t *host_origin, const size_t *region, size_t buffer_row, size_t buffer_slice,
          size_t host_row, size_t host_slice, const void *data, cl_uint num_wait,
          const cl_event *wait, cl_event *event),
         (queue, buffer, blocking, buffer_origin, host_origin, region, buffer_row, buffer_slice,
          host_row, host_slice, data, num_wait, wait, event))
ENQUEUE(clEnqueueFillBuffer,
        (cl_command_queue queue, cl_mem buffer, const void *pattern, size_t pattern_size,
         size_t offset, size_t size, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, buffer, pattern, pattern_size, offset, size, num_wait, wait, event))
ENQUEUE(clEnqueueCopyBuffer,
        (cl_command_queue queue, cl_mem source, cl_mem target, size_t source_offset,
         size_t target_offset, size_t size, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, source, target, source_offset, target_offset, size, num_wait, wait, event))
ENQUEUE(clEnqueueCopyBufferRect,
        (cl_command_queue queue, cl_mem source, cl_mem target, const size_t *source_origin,
         const size_t *target_origin, const size_t *region, size_t source_row, size_t source_slice,
         size_t target_row, size_t target_slice, cl_uint num_wait, const cl_event *wait,
         cl_event *event),
        (queue, source, target, source_origin, target_origin, region, source_row, source_slice,
         target_row, target_slice, num_wait, wait, event))
CUSTOM(clEnqueueMapBuffer)
CUSTOM(clEnqueueMapImage)
ENQUEUE(clEnqueueUnmapMemObject,
        (cl_command_queue queue, cl_mem object, void *mapped, cl_uint num_wait, const cl_event *wait,
         cl_event *event),
        (queue, object, mapped, num_wait, wait, event))
ENQUEUE(clEnqueueMigrateMemObjects,
        (cl_command_queue queue, cl_uint num_objects, const cl_mem *objects,
         cl_mem_migration_flags flags, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, num_objects, objects, flags, num_wait, wait, event))
BLOCKING(clEnqueueReadImage,
         (cl_command_queue queue, cl_mem image, cl_bool blocking, const size_t *origin,
          const size_t *region, size_t row_pitch, size_t slice_pitch, void *data, cl_uint num_wait,
          const cl_event *wait, cl_event *event),
         (queue, image, blocking, origin, region, row_pitch, slice_pitch, data, num_wait, wait, event))
BLOCKING(clEnqueueWriteImage,
         (cl_command_queue queue, cl_mem image, cl_bool blocking, const size_t *origin,
          const size_t *region, size_t row_pitch, size_t slice_pitch, const void *data,
          cl_uint num_wait, const cl_event *wait, cl_event *event),
         (queue, image, blocking, origin, region, row_pitch, slice_pitch, data, num_wait, wait, event))
ENQUEUE(clEnqueueFillImage,
        (cl_command_queue queue, cl_mem image, const void *color, const size_t *origin,
         const size_t *region, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, image, color, origin, region, num_wait, wait, event))
ENQUEUE(clEnqueueCopyImage,
        (cl_command_queue queue, cl_mem source, cl_mem target, const size_t *source_origin,
         const size_t *target_origin, const size_t *region, cl_uint num_wait, const cl_event *wait,
         cl_event *event),
        (queue, source, target, source_origin, target_origin, region, num_wait, wait, event))
ENQUEUE(clEnqueueCopyImageToBuffer,
        (cl_command_queue queue, cl_mem source, cl_mem target, const size_t *origin,
         const size_t *region, size_t offset, cl_uint num_wait, const cl_event *wait,
         cl_event *event),
        (queue, source, target, origin, region, offset, num_wait, wait, event))
ENQUEUE(clEnqueueCopyBufferToImage,
        (cl_command_queue queue, cl_mem source, cl_mem target, size_t offset, const size_t *origin,
         const size_t *region, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, source, target, offset, origin, region, num_wait, wait, event))
BLOCKING(clEnqueueSVMMemcpy,
         (cl_command_queue queue, cl_bool blocking, void *target, const void *source, size_t size,
          cl_uint num_wait, const cl_event *wait, cl_event *event),
         (queue, blocking, target, source, size, num_wait, wait, event))
ENQUEUE(clEnqueueSVMMemFill,
        (cl_command_queue queue, void *target, const void *pattern, size_t pattern_size, size_t size,
         cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, target, pattern, pattern_size, size, num_wait, wait, event))
BLOCKING(clEnqueueSVMMap,
         (cl_command_queue queue, cl_bool blocking, cl_map_flags flags, void *target, size_t size,
          cl_uint num_wait, const cl_event *wait, cl_event *event),
         (queue, blocking, flags, target, size, num_wait, wait, event))
ENQUEUE(clEnqueueSVMUnmap,
        (cl_command_queue queue, void *target, cl_uint num_wait, const cl_event *wait,
         cl_event *event),
        (queue, target, num_wait, wait, event))
ENQUEUE(clEnqueueSVMMigrateMem,
        (cl_command_queue queue, cl_uint num_pointers, const void **pointers, const size_t *sizes,
         cl_mem_migration_flags flags, cl_uint num_wait, const cl_event *wait, cl_event *event),
        (queue, num_pointers, pointers, sizes, flags, num_wait, wait, event))
CUSTOM(clEnqueueSVMFree)

/* clang-format on */

#undef CALL
#undef STATUS
#undef CREATE
#undef RETAIN
#undef RELEASE
#undef ENQUEUE
#undef BLOCKING
#undef CUSTOM
#undef EXTENSION
