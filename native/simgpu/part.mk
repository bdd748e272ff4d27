# The simulated driver pair and the keeper of simulated nodes.
SIM_OUT := $(OUT)/simgpu
SIM_BUILD := $(BUILD)/simgpu
SIM_DIR := $(ROOT)/native/simgpu
SIM_HEADERS := $(wildcard $(SIM_DIR)/*.h $(ROOT)/native/page/*.h)
SIM_CORE := $(patsubst %.c,$(SIM_BUILD)/%.o,state.c engine.c profiles.c profiles_node.c)
SIM_CTL := $(patsubst $(SIM_DIR)/%.c,$(SIM_BUILD)/%.o,$(wildcard $(SIM_DIR)/simctl*.c))
SIM_NVML := $(patsubst $(SIM_DIR)/%.c,$(SIM_BUILD)/%.o,$(wildcard $(SIM_DIR)/nvml_*.c))
SIM_CUDA := $(patsubst $(SIM_DIR)/%.c,$(SIM_BUILD)/%.o,$(wildcard $(SIM_DIR)/cuda_*.c $(SIM_DIR)/image*.c $(SIM_DIR)/kernels.c))
SIM_STATE := $(SIM_BUILD)/state.o $(SIM_BUILD)/engine.o

$(SIM_BUILD)/%.o: $(SIM_DIR)/%.c $(SIM_HEADERS) | $(API_STAMP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

$(SIM_OUT)/calabash-simctl: $(SIM_CORE) $(SIM_CTL)
	@mkdir -p $(@D)
	$(CC) -pthread -Wl,-z,now -Wl,-z,relro -o $@ $^
TARGETS += $(SIM_OUT)/calabash-simctl

ifneq ($(SIM_NVML),)
$(SIM_OUT)/libnvidia-ml.so.1: $(SIM_CORE) $(SIM_NVML) $(API_SIM_NVML_OBJECTS) $(API_SIM_NVML_MAP)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(API_SIM_LDFLAGS) -Wl,--version-script=$(API_SIM_NVML_MAP) -Wl,-soname,$(@F) -o $@ \
		$(filter %.o,$^) -lm
TARGETS += $(SIM_OUT)/libnvidia-ml.so.1
endif

ifneq ($(SIM_CUDA),)
$(SIM_OUT)/libcuda.so.1: $(SIM_STATE) $(SIM_CUDA) $(API_SIM_CUDA_OBJECTS) $(API_SIM_CUDA_MAP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,nodelete $(API_SIM_LDFLAGS) \
		-Wl,--version-script=$(API_SIM_CUDA_MAP) \
		-o $@.new $(filter %.o,$^)
	@mv $@.new $@ # programs that have the old one mapped keep it
TARGETS += $(SIM_OUT)/libcuda.so.1
endif
