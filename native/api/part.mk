# Generated C, shared by the other parts. A part that includes "api/…" depends on $(API_STAMP); the simulator links
# $(API_SIM_CUDA_OBJECTS) or $(API_SIM_NVML_OBJECTS) with $(API_SIM_LDFLAGS) and the map of its library.
API_DIR := $(ROOT)/native/api
API_BUILD := $(BUILD)/api
API_STAMP := $(API_BUILD)/stamp
API_SIM_CUDA_OBJECTS := $(addprefix $(API_BUILD)/,sim_cuda_stubs.o sim_cuda_table.o cuda_resolve.o)
API_SIM_NVML_OBJECTS := $(API_BUILD)/sim_nvml_stubs.o
API_SIM_CARDS := $(API_BUILD)/sim_cards.o
API_SIM_CUDA_MAP := $(API_BUILD)/sim_cuda.map
API_SIM_NVML_MAP := $(API_BUILD)/sim_nvml.map
API_SIM_LDFLAGS := -Wl,-Bsymbolic
API_ERRORS := $(API_BUILD)/cuda_errors.o
TARGETS += $(API_SIM_CUDA_OBJECTS) $(API_SIM_NVML_OBJECTS) $(API_SIM_CARDS)

$(API_STAMP): $(wildcard $(API_DIR)/*.py $(API_DIR)/*.tsv)
	$(PYTHON) $(API_DIR)/generate.py $(API_BUILD)

$(API_SIM_CUDA_MAP) $(API_SIM_NVML_MAP): $(API_STAMP)
	@touch -c $@ # the generator does not rewrite unchanged files; without a new time this rule would run every time

$(API_BUILD)/%.o: $(API_STAMP)
	$(CC) $(CFLAGS) -c $(API_BUILD)/$*.c -o $@

$(API_ERRORS): $(API_DIR)/cuda_errors.c $(API_STAMP)
	$(CC) $(CFLAGS) -c $< -o $@
