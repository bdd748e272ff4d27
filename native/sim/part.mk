# The simulated driver pair and the tools of simulated nodes: node/ (the shared state, the engine, the cards),
# ptx/ (the interpreter of kernels), cuda/ (libcuda.so.1), nvml/ (libnvidia-ml.so.1), mps/ (the multi-process service),
# smi/ (nvidia-smi), ctl/ (calabash-simctl).
SIM_DIR := $(ROOT)/native/sim
SIM_OUT := $(OUT)/simgpu
SIM_BUILD := $(BUILD)/sim
SIM_OBJECTS = $(patsubst $(SIM_DIR)/%.c,$(SIM_BUILD)/%.o,$(wildcard $(1)))
SIM_NODE := $(call SIM_OBJECTS,$(SIM_DIR)/node/*.c)
SIM_CUDA := $(call SIM_OBJECTS,$(SIM_DIR)/cuda/*/*.c)
SIM_PTX := $(call SIM_OBJECTS,$(SIM_DIR)/ptx/*.c)
SIM_NVML := $(call SIM_OBJECTS,$(SIM_DIR)/nvml/*.c)
SIM_MPS := $(call SIM_OBJECTS,$(SIM_DIR)/mps/log.c)
SIM_MPS_CONTROL := $(filter-out $(SIM_BUILD)/mps/server.o,$(call SIM_OBJECTS,$(SIM_DIR)/mps/*.c))
SIM_SMI := $(call SIM_OBJECTS,$(SIM_DIR)/smi/*.c)
SIM_CTL := $(call SIM_OBJECTS,$(SIM_DIR)/ctl/*.c)
SIM_VERSION := $(shell sed -n 's/^.define SIM_DRIVER_VERSION "\(.*\)"/\1/p' $(SIM_DIR)/node/state.h)

$(SIM_BUILD)/%.o: $(SIM_DIR)/%.c $(SIM_DIR)/part.mk | $(API_STAMP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# Handlers are loops over the lanes of a warp, which the compiler turns into vector instructions. A register has no
# type: one handler may write it as f32 and another read it as b32.
$(SIM_PTX): CFLAGS += -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off -fno-strict-aliasing

-include $(wildcard $(SIM_BUILD)/*/*.d $(SIM_BUILD)/*/*/*.d)

$(SIM_OUT)/calabash-simctl: $(SIM_NODE) $(SIM_CTL) $(API_SIM_CARDS)
	@mkdir -p $(@D)
	$(CC) -pthread -Wl,-z,now -Wl,-z,relro -o $@.new $^
	@mv -f $@.new $@

$(SIM_OUT)/nvidia-smi: $(SIM_NODE) $(SIM_SMI) $(API_SIM_CARDS)
	@mkdir -p $(@D)
	$(CC) -pthread -Wl,-z,now -Wl,-z,relro -o $@.new $^
	@mv -f $@.new $@

$(SIM_OUT)/nvidia-cuda-mps-control: $(SIM_NODE) $(SIM_MPS_CONTROL) $(API_SIM_CARDS)
	@mkdir -p $(@D)
	$(CC) -pthread -Wl,-z,now -Wl,-z,relro -o $@.new $^
	@mv -f $@.new $@

$(SIM_OUT)/nvidia-cuda-mps-server: $(SIM_NODE) $(SIM_MPS) $(SIM_BUILD)/mps/server.o $(API_SIM_CARDS) \
		$(SIM_OUT)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -pthread -Wl,-z,now -Wl,-z,relro -Wl,-rpath,'$$ORIGIN' -o $@.new $^
	@mv -f $@.new $@

$(SIM_OUT)/libnvidia-ml.so.1: $(SIM_NODE) $(SIM_NVML) $(API_SIM_CARDS) $(API_SIM_NVML_OBJECTS) $(API_SIM_NVML_MAP)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(API_SIM_LDFLAGS) -Wl,--version-script=$(API_SIM_NVML_MAP) -Wl,-soname,$(@F) -o $@.new \
		$(filter %.o,$^) -lm
	@mv -f $@.new $@ # programs that have the old one mapped keep it

$(SIM_OUT)/libcuda.so.1: $(SIM_NODE) $(SIM_CUDA) $(SIM_PTX) $(API_ERRORS) $(IMAGE_OBJECTS) $(API_SIM_CARDS) $(API_SIM_CUDA_OBJECTS) $(API_SIM_CUDA_MAP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,nodelete $(API_SIM_LDFLAGS) \
		-Wl,--version-script=$(API_SIM_CUDA_MAP) \
		-o $@.new $(filter %.o,$^) -lm
	@mv -f $@.new $@

# The other names of a driver's libraries: without a version, and with the driver's own.
SIM_NAMES := $(foreach library,libcuda.so libnvidia-ml.so,$(SIM_OUT)/$(library) $(SIM_OUT)/$(library).$(SIM_VERSION))
$(SIM_OUT)/libcuda.so $(SIM_OUT)/libcuda.so.$(SIM_VERSION): | $(SIM_OUT)/libcuda.so.1
	ln -sf libcuda.so.1 $@
$(SIM_OUT)/libnvidia-ml.so $(SIM_OUT)/libnvidia-ml.so.$(SIM_VERSION): | $(SIM_OUT)/libnvidia-ml.so.1
	ln -sf libnvidia-ml.so.1 $@

TARGETS += $(addprefix $(SIM_OUT)/,calabash-simctl libnvidia-ml.so.1 libcuda.so.1 nvidia-cuda-mps-control \
	nvidia-cuda-mps-server nvidia-smi) $(SIM_NAMES)
