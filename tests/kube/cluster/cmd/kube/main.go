// The programs of a Kubernetes control plane, its node agent, its command line and its database, linked as one: what they
// share, which is most of them, is compiled, stored and mapped into memory once. The name it is called by decides which it is.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl": func() int {
		util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
		return 0
	},
}

func main() {
	program, known := programs[filepath.Base(os.Args[0])]
	if !known {
		fmt.Fprintf(os.Stderr, "%s: no program of this name\nhint: call it by a link named as one of Kubernetes' programs\n", os.Args[0])
		os.Exit(2)
	}
	os.Exit(program())
}
