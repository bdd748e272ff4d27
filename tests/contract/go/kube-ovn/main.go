// Reads custom resources of Kube-OVN, one JSON object a line, into Kube-OVN's own types, as its controller does, but strictly:
// a field that these types do not have is an error. Prints one line for each resource: "ok", or what is wrong.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	kubeovn "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

func typed(kind string) any {
	switch kind {
	case "Vpc":
		return &kubeovn.Vpc{}
	case "Subnet":
		return &kubeovn.Subnet{}
	case "Vip":
		return &kubeovn.Vip{}
	case "SecurityGroup":
		return &kubeovn.SecurityGroup{}
	case "OvnEip":
		return &kubeovn.OvnEip{}
	case "OvnSnatRule":
		return &kubeovn.OvnSnatRule{}
	case "OvnFip":
		return &kubeovn.OvnFip{}
	case "OvnDnatRule":
		return &kubeovn.OvnDnatRule{}
	case "VpcNatGateway":
		return &kubeovn.VpcNatGateway{}
	case "IptablesEIP":
		return &kubeovn.IptablesEIP{}
	case "IptablesSnatRule":
		return &kubeovn.IptablesSnatRule{}
	case "IptablesFIPRule":
		return &kubeovn.IptablesFIPRule{}
	case "IptablesDnatRule":
		return &kubeovn.IptablesDnatRule{}
	case "SwitchLBRule":
		return &kubeovn.SwitchLBRule{}
	case "ProviderNetwork":
		return &kubeovn.ProviderNetwork{}
	case "Vlan":
		return &kubeovn.Vlan{}
	case "VpcDns":
		return &kubeovn.VpcDns{}
	}
	return nil
}

func wrong(line []byte) error {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return err
	}
	into := typed(head.Kind)
	if into == nil || head.APIVersion != kubeovn.SchemeGroupVersion.String() {
		return fmt.Errorf("no kind %s of %s", head.Kind, head.APIVersion)
	}
	reader := json.NewDecoder(bytes.NewReader(line))
	reader.DisallowUnknownFields()
	return reader.Decode(into)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if err := wrong(lines.Bytes()); err != nil {
			fmt.Println(err)
		} else {
			fmt.Println("ok")
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
